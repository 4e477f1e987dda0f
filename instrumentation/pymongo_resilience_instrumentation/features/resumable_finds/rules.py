"""The rules of resumable finds: which finds, what is sent, and after which failures. Pure.

An aggregate that only has ``$match`` stages, and perhaps a ``$sort``, is treated as a find.

``{_id: {$gt: last}}`` compares only values of the same BSON type, and would skip documents of other
types. So the resumed find uses an expression, which compares all types in the order of the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pymongo_resilience.rules.failure import (
    CURSOR_NOT_FOUND,
    MAX_TIME_EXPIRED,
    Failure,
    RetryReason,
)
from pymongo_resilience.rules.retry_state import RetryState

ID = "_id"
BY_ID: Mapping[str, int] = {ID: 1}
QUERY_PLAN_KILLED = 175
SCAN_ENDED = frozenset({QUERY_PLAN_KILLED, 237, 11601})
"""Codes that end a scan: the collection was dropped or renamed (QueryPlanKilled), or an
administrator killed the cursor or the command (CursorKilled, Interrupted).
"""
NOT_SORTED = frozenset({2, 96, 292})
"""Codes with which a server may refuse to sort by ``_id``: an invalid sort, or not enough memory
(OperationFailed before MongoDB 4.4, QueryExceededMemoryLimitNoDiskUseAllowed).
"""
_NOT_AFTER_ANY = frozenset({"available", "linearizable"})
_BAD_VALUE = 2
_GEO_AND_TEXT = frozenset({
    "$text", "$near", "$nearSphere", "$geoNear", "$geoWithin", "$geoIntersects", "$within",
})  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Find:
    """The relevant parts of a find command. Immutable. Has no repr, because its values are the
    application's.
    """

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
    max_time_ms: int | None = None
    """The application's own time limit for all batches together."""
    load_balanced: bool = False
    read_concern_level: str | None = None

    @property
    def has_cursor(self) -> bool:
        """True if there may be a second batch."""
        return self.limit >= 0 and not self.explain

    @property
    def may_read_after(self) -> bool:
        """True if the read concern can have ``afterClusterTime``."""
        return self.read_concern_level not in _NOT_AFTER_ANY

    @property
    def hides_id(self) -> bool:
        """True if the documents are returned without ``_id``."""
        shown = (self.projection or {}).get(ID, True)
        return isinstance(shown, (bool, int, float)) and not shown


def problem_of(find: Find) -> str | None:
    """Return why the find cannot be resumed, or None if it can."""
    if find.in_transaction:
        return "a find in a transaction cannot be resumed. Retry the whole transaction instead"
    if find.at_snapshot:
        return "a find in a snapshot session cannot be resumed, because it would read new data"
    if find.load_balanced:
        return "behind a load balancer, a cursor cannot be resumed on another connection"
    if _names_natural(find.sort) or _names_natural(find.hint):
        return "a find in $natural order cannot be resumed"
    if find.tailable or find.exhaust:
        return f"{'a tailable' if find.tailable else 'an exhaust'} cursor cannot be resumed"
    if find.sort and (len(find.sort) != 1 or find.sort.get(ID) not in (1, -1)):
        return "a resumable find must be sorted by _id or not sorted"
    if _names(find.filter, _GEO_AND_TEXT):
        return "a geo or text query cannot be resumed, because it has its own order and index"
    if find.collation and find.collation.get("locale") != "simple":
        return 'a resumable find must have no collation, or the collation "simple"'
    if find.hint and find.hint not in ("_id_", BY_ID):
        return "a resumable find must have no hint, or a hint on _id"
    if find.keys_alone:
        return "a resumable find cannot use return_key, because the documents may lack _id"
    if _computes_id(find.projection or {}):
        return "the projection of a resumable find must include _id unchanged, or exclude it"
    return None


def risk_of(find: Find) -> str | None:
    """Return why sorting the find by ``_id`` might change its result or make it slow, or None.

    Asked only if the application wants other finds to run unchanged.
    """
    if find.sort or not (find.limit or find.skip):
        return None
    # Without a sort, the server stops at the first documents that match. To sort, it would have to
    # read all of them.
    return "a find with a limit or skip is only resumed if it is sorted by _id"


NOT_PLAIN = (
    "a find of a view, a capped collection, or a time-series collection is only resumed if it is "
    "sorted by _id"
)
"""Their documents have another order, or they have no index on ``_id``."""
KIND_UNKNOWN = "listCollections failed, so it is not known if the find can be sorted by _id"
SORT_REFUSED = "the server refused to sort the find by _id"


def as_find(pipeline: object) -> tuple[Mapping[str, Any], Mapping[str, Any] | None] | None:
    """Return the filter and the sort of a pipeline that is no more than a find, or None."""
    if not isinstance(pipeline, list):
        return None
    stages = list(pipeline)
    sort = None
    if stages and isinstance(stages[-1], Mapping) and [*stages[-1]] == ["$sort"]:
        sort = stages.pop()["$sort"]
        if not isinstance(sort, Mapping):
            return None
    filters = []
    for stage in stages:
        if not isinstance(stage, Mapping) or [*stage] != ["$match"]:
            return None
        filters.append(stage["$match"])
    if not all(isinstance(each, Mapping) for each in filters):
        return None
    filters = [each for each in filters if each]
    return {"$and": filters} if len(filters) > 1 else filters[0] if filters else {}, sort


def _names_natural(args: Any) -> bool:
    return args == "$natural" or (isinstance(args, Mapping) and "$natural" in args)


def _names(args: Any, operators: frozenset[str]) -> bool:
    if isinstance(args, Mapping):
        return any(name in operators or _names(each, operators) for name, each in args.items())
    return isinstance(args, (list, tuple)) and any(_names(each, operators) for each in args)


def _computes_id(projection: Mapping[str, Any]) -> bool:
    plain = isinstance(projection.get(ID, True), (bool, int, float))
    return not plain or any(name.startswith(f"{ID}.") for name in projection)


def begun(find: Find, *, hint: bool = True) -> Find:
    """Return the find to send first: ordered by ``_id``, and with ``_id`` in each document.

    Without ``hint``, the server may use another index for a selective filter, and sort the result.
    """
    if not find.sort:
        find = replace(find, sort=BY_ID, hint=BY_ID if hint else find.hint)
    if find.hides_id:
        shown = {name: each for name, each in (find.projection or {}).items() if name != ID}
        find = replace(find, projection=shown or None)
    return find


def lacks_id_index(find: Find, code: int | None, text: str) -> bool:
    """Return True if the error means that the collection has no index on ``_id`` for the hint."""
    return code == _BAD_VALUE and find.hint is BY_ID and "hint" in text


def continued(find: Find, last: Any, *, limit: int) -> Find:
    """Return the find that continues after the document with the ``_id`` ``last``.

    ``limit`` is the rest of the find's limit.
    """
    than, until = ("$lt", "$gte") if (find.sort or {}).get(ID) == -1 else ("$gt", "$lte")
    after = [
        {"$expr": {than: [f"${ID}", {"$literal": last}]}},
        # The same for values of one BSON type. Before MongoDB 5.0, only this condition uses the
        # index.
        {ID: {"$not": {until: last}}},
    ]
    both = {"$and": [find.filter, *after] if find.filter else after}
    return replace(find, filter=both, limit=limit, skip=0)


def reclassified(
    failure: Failure,
    state: RetryState,
    max_retries: int,
    *,
    max_time_ms: int | None = None,
    has_documents: bool = True,
) -> tuple[Failure, bool]:
    """Return the failure of a getMore as the rules should see it, and whether to send the find
    again.

    A new find does not depend on the lost cursor or its server. A getMore is sent again only if it
    was rejected because of overload, up to ``max_retries`` times; then the find gets as many
    retries. Called before ``state`` counts the failure.

    A server's own time limit covers all batches of a cursor. If it ends a later batch, a new find
    starts with the whole limit again. ``max_time_ms`` is the application's own limit for all
    batches, after which the find ends. Without any document so far (``has_documents``), a new find
    would run into the same limit.
    """
    if failure.retryable_overload:
        if state.attempts < max_retries:
            return failure, False
        state.attempts, state.overloaded = 0, False
    elif failure.code == CURSOR_NOT_FOUND:
        failure = replace(failure, reason=RetryReason.CURSOR_LOST)
    elif failure.code == MAX_TIME_EXPIRED and failure.reason is RetryReason.UNKNOWN:
        if max_time_ms is not None or not has_documents:
            return replace(failure, application_limit_ms=max_time_ms), False
        failure = replace(failure, reason=RetryReason.CURSOR_LOST)
    elif failure.selection and not failure.terminal:
        reason = RetryReason.SOCKET_NOT_AVAILABLE
        failure = replace(failure, reason=reason, selection=False)
    return failure, True
