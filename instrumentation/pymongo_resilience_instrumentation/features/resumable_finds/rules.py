"""Resumable finds: which finds can be, what is sent for them, and which failures of a batch resume.

Pure. ``{_id: {$gt: last}}`` compares within one type of BSON alone, and would skip documents. So a
find goes on by the bounds of the index on ``_id``, or by an expression, whose order is the same.
Only a filter that compares ``_id`` itself does not leave a type, and goes on by ``$gt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bson import MaxKey, MinKey

from pymongo_resilience.rules.failure import Failure, RetryReason
from pymongo_resilience.rules.retried_operation import Operation

ID = "_id"
BY_ID: Mapping[str, int] = {ID: 1}
CURSOR_NOT_FOUND = 43
QUERY_PLAN_KILLED = 175
SCAN_ENDED = frozenset({QUERY_PLAN_KILLED, 237, 11601})
"""Codes that end a scan: its collection was dropped or renamed (QueryPlanKilled), or an
administrator has killed its cursor or its command (CursorKilled, Interrupted)."""
NO_BOUNDS = frozenset({2, 9, 72, 115, 167, 168, 238, 303, 323, 40415, 51174, 6137400, 6137402})
"""Codes of a server that takes no bounds: there is no index on ``_id`` (2), it cannot parse or does
not know them, or not on a view (167, 168), under the strict Stable API (323), for an index with
another collation than the find's (51174), or on a clustered collection (6137400, 6137402)."""
_BAD_VALUE = 2
_COMPARISONS = frozenset({"$gt", "$gte", "$lt", "$lte"})
_NOT_AFTER_ANY = frozenset({"available", "linearizable"})
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
    min: Mapping[str, Any] | None = None
    max: Mapping[str, Any] | None = None
    skip: int = 0
    limit: int = 0
    collation: Mapping[str, Any] | None = None
    return_key: bool = False
    tailable: bool = False
    exhaust: bool = False
    explain: bool = False
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
        wanted = (self.projection or {}).get(ID, True)
        return isinstance(wanted, (bool, int, float)) and not wanted


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
    if find.min or find.max or find.return_key:
        return "expected a find without min, max and return_key"
    if _computes_id(find.projection or {}):
        return "expected a projection that has _id as it is, or leaves it out"
    return None


def _names_natural(said: Any) -> bool:
    return said == "$natural" or (isinstance(said, Mapping) and "$natural" in said)


def _names(said: Any, operators: frozenset[str]) -> bool:
    if isinstance(said, Mapping):
        return any(name in operators or _names(each, operators) for name, each in said.items())
    return isinstance(said, (list, tuple)) and any(_names(each, operators) for each in said)


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


def continued(find: Find, last: Any, *, limit: int, by_expression: bool) -> Find:
    """What is sent to go on after the document whose ``_id`` is ``last``; ``limit`` is what is left
    of the find's.

    ``max`` excludes its bound. ``min`` includes it, so the document is excluded beside.
    """
    find = replace(find, limit=limit, skip=0)
    backward = _is_backward(find)
    if isinstance(last, MinKey if backward else MaxKey):
        return replace(find, filter={ID: {"$in": []}})
    than = "$lt" if backward else "$gt"
    pinned, ranged = _conditions_on_id(find.filter)
    if ranged:
        # The find's own range leaves no type of BSON, within which this compares.
        return replace(find, filter=_both(find.filter, {ID: {than: last}}))
    if by_expression or pinned:
        after: Any = {"$expr": {than: [f"${ID}", {"$literal": last}]}}
        return replace(find, filter=_both(find.filter, after))
    if backward:
        return replace(find, hint=BY_ID, max={ID: last})
    others = _both(find.filter, {ID: {"$ne": last}})
    return replace(find, filter=others, hint=BY_ID, min={ID: last})


def excludes_max_key(find: Find) -> bool:
    """Whether the find would not come to a document whose ``_id`` is MaxKey: ``min`` alone leaves
    out the end of the index."""
    return find.min is not None


def lacks_id_index(find: Find, code: int | None, text: str) -> bool:
    """Whether the error of a first command says that there is no index on ``_id`` to hint at."""
    return code == _BAD_VALUE and find.hint is BY_ID and "hint" in text


def _is_backward(find: Find) -> bool:
    return (find.sort or {}).get(ID) == -1


def _conditions_on_id(given: Any) -> tuple[bool, bool]:
    """Whether the filter names each ``_id``, and whether it compares with one."""
    if not isinstance(given, Mapping):
        return False, False
    found = [_conditions_on_id(each) for each in given.get("$and", ())]
    if ID in given:
        condition = given[ID]
        operators = set(condition) if isinstance(condition, Mapping) else set()
        ranged = any(
            not isinstance(condition[each], (MinKey, MaxKey)) for each in operators & _COMPARISONS
        )
        pinned = "$in" in operators or not any(each.startswith("$") for each in operators)
        found.append((pinned, ranged))
    return any(pinned for pinned, _ in found), any(ranged for _, ranged in found)


def _both(given: Mapping[str, Any], ours: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"$and": [given, ours]} if given else ours


def reclassified(failure: Failure, operation: Operation, max_retries: int) -> tuple[Failure, bool]:
    """The failure of a getMore as the rules are to see it, before ``operation`` has recorded it,
    and whether the attempt after it is the find, made anew.

    What only its cursor or its server lacks, a new find has. A getMore is sent once more where it
    was rejected for overload, never else: ``max_retries`` times, then the find has as many.
    """
    if failure.retryable_overload:
        if operation.attempts < max_retries:
            return failure, False
        operation.attempts, operation.overloaded = 0, False
    elif failure.code == CURSOR_NOT_FOUND:
        failure = replace(failure, reason=RetryReason.CURSOR_LOST)
    elif failure.selection and not failure.terminal:
        reason = RetryReason.SOCKET_NOT_AVAILABLE
        failure = replace(failure, reason=reason, selection=False)
    return failure, True
