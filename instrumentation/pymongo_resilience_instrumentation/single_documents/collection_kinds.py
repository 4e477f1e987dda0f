"""Whether ``_id`` is unique in a collection, which it need not be in a time-series collection.

The server is asked once for each client and namespace, before the first write that depends on it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.faults import shielded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pymongo_resilience_instrumentation.interception.steps import Steps

MOST = 1024
"""Namespaces that are remembered."""
UNAUTHORIZED = 13


class Collections:
    """Those of one client, which it does not hold. Thread- and task-safe: one may be asked for
    twice."""

    def __init__(self) -> None:
        self._permitted: dict[str, bool] = {}

    def permit(self, client: Any, namespaces: Iterable[str]) -> Steps:
        """Whether in all of them at most one document can have an ``_id``. In doubt, no."""
        for namespace in namespaces:
            permitted = self._permitted.get(namespace)
            if permitted is None:
                database, _, name = namespace.partition(".")
                try:
                    cursor = yield partial(client[database].list_collections, filter={"name": name})
                    permitted = self._is_unique(namespace, (yield cursor.to_list))
                except PyMongoError as error:
                    if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED:
                        self.refuse([namespace])
            if not permitted:
                return False
        return True

    def refuse(self, namespaces: Iterable[str]) -> None:
        """The server refuses writes to one document there, or may not be asked."""
        for namespace in namespaces:
            self._remember(namespace, permitted=False)

    def _is_unique(self, namespace: str, found: Sequence[Any]) -> bool:
        with shielded("with the kind of a collection"):
            permitted = all(
                each.get("type", "collection") == "collection"
                and "timeseries" not in each.get("options", {})
                for each in found
            )
            if found:  # else the write makes an ordinary one
                self._remember(namespace, permitted=permitted)
            return permitted
        return False

    def _remember(self, namespace: str, *, permitted: bool) -> None:
        if len(self._permitted) >= MOST:
            self._permitted.clear()
        self._permitted[namespace] = permitted
