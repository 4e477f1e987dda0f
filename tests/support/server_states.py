"""Counts what a client takes its servers for."""

from __future__ import annotations

from typing import Any

from pymongo.monitoring import ServerDescriptionChangedEvent, ServerListener


class Unknown(ServerListener):
    """Counts how often a server that was known became Unknown."""

    def __init__(self) -> None:
        self.times = 0

    def opened(self, event: Any) -> None: ...

    def closed(self, event: Any) -> None: ...

    def description_changed(self, event: ServerDescriptionChangedEvent) -> None:
        before, now = event.previous_description, event.new_description
        self.times += before.is_server_type_known and not now.is_server_type_known
