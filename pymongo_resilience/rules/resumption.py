"""Resumable finds: which finds can be, what is sent for them, and which failures of a batch resume.

Pure. ``{_id: {$gt: last}}`` compares within one type of BSON alone, and would skip documents. So a
find goes on by the bounds of the index on ``_id``, or by an expression, whose order is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .failure import RetryReason

if TYPE_CHECKING:
    from .failure import Failure
    from .retried_operation import Operation

ID = "_id"
BY_ID: Mapping[str, int] = {ID: 1}
CURSOR_LOST = {43: "CursorNotFound", 175: "QueryPlanKilled", 237: "CursorKilled"}
"""Codes: the server has no such cursor any more."""
NO_BOUNDS = frozenset({9, 72, 115, 167, 238, 303, 323, 40415, 51174})
"""Codes of a server that takes no bounds: it cannot parse or does not know them, or not on a view
(167, OptionNotSupportedOnView), under the strict Stable API (323, APIStrictError), or for an index
with another collation than the find's (51174)."""
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

    @property
    def has_cursor(self) -> bool:
        """Whether it may have a second batch."""
        return self.limit >= 0 and not self.explain

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
    if find.skip:
        return "expected a find without skip"
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
    find = replace(find, limit=limit)
    backward = (find.sort or {}).get(ID) == -1
    if by_expression:
        than = "$lt" if backward else "$gt"
        after: Any = {"$expr": {than: [f"${ID}", {"$literal": last}]}}
        return replace(find, filter=_both(find.filter, after))
    if backward:
        return replace(find, hint=BY_ID, max={ID: last})
    others = _both(find.filter, {ID: {"$ne": last}})
    return replace(find, filter=others, hint=BY_ID, min={ID: last})


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
    elif failure.code in CURSOR_LOST:
        failure = replace(failure, reason=RetryReason.CURSOR_LOST)
    elif failure.selection and not failure.terminal:
        reason = RetryReason.SOCKET_NOT_AVAILABLE
        failure = replace(failure, reason=reason, selection=False)
    return failure, True
