"""What the operations of a case act on: clients, databases, collections, buckets, and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import gridfs
from support.clients import Side
from support.conformance.deployments import Bed
from support.conformance.events import Recorder
from support.conformance.matching import NotUnderstood, only_known

_KNOWN: Final = {
    "client": {
        "id",
        "ignoreCommandMonitoringEvents",
        "observeEvents",
        "uriOptions",
        "useMultipleMongoses",
    },
    "database": {"id", "client", "databaseName"},
    "collection": {"id", "database", "collectionName"},
    "bucket": {"id", "database"},
}


class Entities:
    """The entities of one run of a case, by their names.

    :param bed: what its clients connect to.
    :param side: makes the clients, and closes them.
    """

    def __init__(self, bed: Bed, side: Side) -> None:
        self._bed = bed
        self._side = side
        self._entities: dict[str, Any] = {}
        self._recorders: dict[str, Recorder] = {}
        self._makers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "client": self._client,
            "database": lambda given: self[given["client"]][given["databaseName"]],
            "collection": lambda given: self[given["database"]][given["collectionName"]],
            "bucket": self._bucket,
        }

    def create(self, descriptions: Sequence[Mapping[str, Any]]) -> None:
        """Make what ``createEntities`` describes."""
        for description in descriptions:
            [(kind, given)] = description.items()
            only_known([kind], _KNOWN, "entity")
            only_known(given, _KNOWN[kind], kind)
            self.keep(given["id"], self._makers[kind](given))

    def keep(self, name: str, entity: Any) -> None:
        """Give an entity a name that no other has."""
        if name in self._entities:
            raise NotUnderstood(f"two entities named {name}")
        self._entities[name] = entity

    def __getitem__(self, name: str) -> Any:
        if name not in self._entities:
            raise NotUnderstood(f"no entity named {name}")
        return self._entities[name]

    def observed(self) -> dict[str, list[Any]]:
        """What each client was seen to do until now."""
        return {name: list(recorder.events) for name, recorder in self._recorders.items()}

    def _client(self, given: Mapping[str, Any]) -> Any:
        recorder = Recorder(
            given.get("observeEvents", ()), given.get("ignoreCommandMonitoringEvents", ())
        )
        self._recorders[given["id"]] = recorder
        return self._side.client(
            self._bed.uri(all_routers=given.get("useMultipleMongoses", True)),
            event_listeners=[recorder],
            **self._bed.credentials,
            **given.get("uriOptions", {}),
        )

    def _bucket(self, given: Mapping[str, Any]) -> Any:
        make = gridfs.GridFSBucket if self._side.runner is None else gridfs.AsyncGridFSBucket
        return make(self[given["database"]])
