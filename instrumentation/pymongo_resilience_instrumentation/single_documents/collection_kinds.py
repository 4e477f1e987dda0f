"""Whether ``_id`` is unique in a collection, which it need not be in a time-series collection.

The server is asked once for each client and namespace, before the first write that depends on it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.faults import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pymongo_resilience_instrumentation.interception.steps import Steps

MOST = 1024
"""Namespaces that are remembered."""
UNAUTHORIZED = 13
"""The code of an error that does not pass."""


class Collections:
    """Those of one client, which it does not hold. Thread- and task-safe: one may be asked for
    twice."""

    def __init__(self) -> None:
        self._permitted: dict[str, bool] = {}

    def refuse(self, namespaces: Iterable[str]) -> None:
        """The server refuses writes to one document there."""
        for namespace in namespaces:
            self._remember(namespace, permitted=False)

    def permit(self, client: Any, namespaces: Iterable[str]) -> Steps:
        """Whether in all of them at most one document can have an ``_id``. In doubt, no."""
        for namespace in namespaces:
            permitted = self._permitted.get(namespace)
            if permitted is None:
                database, _, name = namespace.partition(".")
                listed = partial(client[database].list_collections, filter={"name": name})
                try:
                    cursor = yield listed
                    found = yield cursor.to_list
                except PyMongoError as error:
                    permitted = self._unknown(namespace, error)
                else:
                    permitted = self._judge(namespace, found)
            if not permitted:
                return False
        return True

    def _unknown(self, namespace: str, error: PyMongoError) -> bool:
        if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED:
            self._remember(namespace, permitted=False)
        return False

    def _judge(self, namespace: str, found: Sequence[Any]) -> bool:
        if not found:
            # What a write makes is an ordinary collection.
            return True
        try:
            permitted = all(
                each.get("type", "collection") == "collection"
                and "timeseries" not in each.get("options", {})
                for each in found
            )
        except Exception:
            logger.exception("internal error in pymongo-resilience with the kind of a collection")
            return False
        self._remember(namespace, permitted=permitted)
        return permitted

    def _remember(self, namespace: str, *, permitted: bool) -> None:
        if len(self._permitted) >= MOST:
            self._permitted.clear()
        self._permitted[namespace] = permitted
