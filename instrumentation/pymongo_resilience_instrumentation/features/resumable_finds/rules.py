"""Resumable finds: which finds can be, what is sent for them, and which failures of a batch resume.

Pure. ``{_id: {$gt: last}}`` compares within one type of BSON alone, and would skip documents. So a
find goes on by an expression, which compares all types in the order of the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pymongo_resilience.rules.failure import Failure, RetryReason
from pymongo_resilience.rules.retry_state import RetryState

ID = "_id"
BY_ID: Mapping[str, int] = {ID: 1}
CURSOR_NOT_FOUND = 43
QUERY_PLAN_KILLED = 175
SCAN_ENDED = frozenset({QUERY_PLAN_KILLED, 237, 11601})
"""Codes that end a scan: its collection was dropped or renamed (QueryPlanKilled), or an
administrator has killed its cursor or its command (CursorKilled, Interrupted)."""
_NOT_AFTER_ANY = frozenset({"available", "linearizable"})
_BAD_VALUE = 2
_GEO_AND_TEXT = frozenset({
    "$text", "$near", "$nearSphere", "$geoNear", "$geoWithin", "$geoIntersects", "$within",
})  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Find:
    """What a find command says, as far as it matters here. Immutable, and without a text: its
    values are the application's."""

    filter: Mapping[str, Any]
    sort: Mapping[str, Any] | None = None
    hint: Any = None
    projection: Mapping[str, Any] | None = None
    skip: int = 0
    limit: int = 0
    collation: Mapping[str, Any] | None = None
    tailable: bool = False
    exhaust: bool = False
    explain: bool = False
    keys_alone: bool = False
    in_transaction: bool = False
    at_snapshot: bool = False
    load_balanced: bool = False
    read_concern_level: str | None = None

    @property
    def has_cursor(self) -> bool:
        """Whether it may have a second batch."""
        return self.limit >= 0 and not self.explain

    @property
    def may_read_after(self) -> bool:
        """Whether its read concern can have ``afterClusterTime``."""
        return self.read_concern_level not in _NOT_AFTER_ANY

    @property
    def hides_id(self) -> bool:
        """Whether its documents come without their ``_id``."""
        shown = (self.projection or {}).get(ID, True)
        return isinstance(shown, (bool, int, float)) and not shown


def problem_of(find: Find) -> str | None:
    """Why the find cannot be resumed; None where it can."""
    if find.in_transaction:
        return "in a transaction nothing is resumed: repeat the whole transaction"
    if find.at_snapshot:
        return "a find at a snapshot cannot be resumed: another one would read at another"
    if find.load_balanced:
        return "a load balancer pins a cursor to its connection, and both are lost"
    if _names_natural(find.sort) or _names_natural(find.hint):
        return "a find in $natural order cannot be resumed"
    if find.tailable or find.exhaust:
        return f"{'a tailable' if find.tailable else 'an exhaust'} cursor cannot be resumed"
    if find.sort and (len(find.sort) != 1 or find.sort.get(ID) not in (1, -1)):
        return "expected a find that is sorted by _id, or not sorted"
    if _names(find.filter, _GEO_AND_TEXT):
        return "a geo or text query cannot be resumed: it has its own order and index"
    if find.collation and find.collation.get("locale") != "simple":
        return "expected a find without a collation, or with the simple one"
    if find.hint and find.hint not in ("_id_", BY_ID):
        return "expected a find without a hint, or with one on _id"
    if find.keys_alone:
        return "expected a find without return_key: its documents may have no _id"
    if _computes_id(find.projection or {}):
        return "expected a projection that has _id as it is, or leaves it out"
    return None


def _names_natural(args: Any) -> bool:
    return args == "$natural" or (isinstance(args, Mapping) and "$natural" in args)


def _names(args: Any, operators: frozenset[str]) -> bool:
    if isinstance(args, Mapping):
        return any(name in operators or _names(each, operators) for name, each in args.items())
    return isinstance(args, (list, tuple)) and any(_names(each, operators) for each in args)


def _computes_id(projection: Mapping[str, Any]) -> bool:
    plain = isinstance(projection.get(ID, True), (bool, int, float))
    return not plain or any(name.startswith(f"{ID}.") for name in projection)


def begun(find: Find) -> Find:
    """What is sent for it at first: in the order of ``_id``, and with it in each document."""
    if not find.sort:
        find = replace(find, sort=BY_ID, hint=BY_ID)
    if find.hides_id:
        shown = {name: each for name, each in (find.projection or {}).items() if name != ID}
        find = replace(find, projection=shown or None)
    return find


def lacks_id_index(find: Find, code: int | None, text: str) -> bool:
    """Whether the error of a first command says that there is no index on ``_id`` to hint at."""
    return code == _BAD_VALUE and find.hint is BY_ID and "hint" in text


def continued(find: Find, last: Any, *, limit: int) -> Find:
    """What is sent to go on after the document whose ``_id`` is ``last``; ``limit`` is what is left
    of the find's."""
    than, until = ("$lt", "$gte") if (find.sort or {}).get(ID) == -1 else ("$gt", "$lte")
    after = [
        {"$expr": {than: [f"${ID}", {"$literal": last}]}},
        # The same for one type of BSON; before MongoDB 5.0 only this one goes by the index.
        {ID: {"$not": {until: last}}},
    ]
    both = {"$and": [find.filter, *after] if find.filter else after}
    return replace(find, filter=both, limit=limit, skip=0)


def reclassified(failure: Failure, state: RetryState, max_retries: int) -> tuple[Failure, bool]:
    """The failure of a getMore as the rules are to see it, before ``operation`` has recorded it,
    and whether the attempt after it is the find, made anew.

    What only its cursor or its server lacks, a new find has. A getMore is sent once more where it
    was rejected for overload, never else: ``max_retries`` times, then the find has as many.
    """
    if failure.retryable_overload:
        if state.attempts < max_retries:
            return failure, False
        state.attempts, state.overloaded = 0, False
    elif failure.code == CURSOR_NOT_FOUND:
        failure = replace(failure, reason=RetryReason.CURSOR_LOST)
    elif failure.selection and not failure.terminal:
        reason = RetryReason.SOCKET_NOT_AVAILABLE
        failure = replace(failure, reason=reason, selection=False)
    return failure, True
