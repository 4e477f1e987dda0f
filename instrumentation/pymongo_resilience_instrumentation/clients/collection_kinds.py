"""What a collection is: of a capped or a time-series one, some writes are refused, or mean more.

The server is asked once for each client and namespace, before the first write that depends on it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.internal_errors import shielded

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from pymongo_resilience_instrumentation.interception.steps import Steps

MOST = 1024
"""Namespaces that are remembered."""
UNAUTHORIZED = 13
ORDINARY, CAPPED, TIME_SERIES, OTHER = "ordinary", "capped", "time-series", "other"


class Collections:
    """Those of one client, which it does not hold. Thread- and task-safe: one may be asked for
    twice."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}

    def permit(self, client: Any, namespaces: Iterable[str]) -> Steps:
        """Whether in all of them at most one document can have an ``_id``. In doubt, no."""
        for namespace in namespaces:
            if (yield from self.kind(client, namespace)) not in (ORDINARY, CAPPED):
                return False
        return True

    def refuse(self, namespaces: Iterable[str]) -> None:
        """The server refuses writes to one document there, or may not be asked."""
        for namespace in namespaces:
            self._remember(namespace, OTHER)

    def kind(self, client: Any, namespace: str, ask_again: Container[str] = ()) -> Steps:
        """None where the server did not say. ``ask_again``: the kinds for which it is; the
        collection may have been dropped and made as another one."""
        kind = self._kinds.get(namespace)
        if kind is None or kind in ask_again:
            database, _, name = namespace.partition(".")
            try:
                cursor = yield partial(client[database].list_collections, filter={"name": name})
                found = yield cursor.to_list
            except PyMongoError as error:
                if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED:
                    self.refuse([namespace])
                return None
            with shielded("while asking for the kind of a collection"):
                kinds = {_kind(each) for each in found}
                kind = kinds.pop() if len(kinds) == 1 else OTHER
                if found:
                    self._remember(namespace, kind)
                else:
                    kind = ORDINARY  # as a write makes it
        return kind

    def _remember(self, namespace: str, kind: str) -> None:
        if len(self._kinds) >= MOST:
            self._kinds.clear()
        self._kinds[namespace] = kind


def _kind(listed: Mapping[str, Any]) -> str:
    kind, options = listed.get("type", "collection"), listed.get("options", {})
    if kind == "timeseries" or "timeseries" in options:
        return TIME_SERIES
    if kind != "collection":
        return OTHER
    return CAPPED if options.get("capped") else ORDINARY
