"""The servers on which the rows of the table are run, and their clients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, PyMongoError
from support.clients import Side, wait_until
from support.engine.fake_clock import FakeClock
from support.engine.scenarios import Scenario
from support.scenario_faults import LOGIN, FaultsInOrder, is_refusal

from pymongo_resilience.rules.failure import Stage
from pymongo_resilience.rules.retried_operation import Kind
from pymongo_resilience.testbed import CutBefore, ReplicaSet

SHORT_MS = 1000
"""Of an attempt that is to run out of the driver's own time."""
SELECTION_MS = 150
"""Of a selection that is to find no server."""


def selects(row: Scenario) -> bool:
    """Whether an attempt is to find no server."""
    return any(fault.selection for fault in row.faults)


def starts_unsent(row: Scenario) -> bool:
    """Whether the first attempt is to find no connection, or no server to make one to."""
    first = row.faults[0] if row.faults else None
    return first is not None and first.stage is Stage.NOT_SENT and not is_refusal(first)


def options_of(row: Scenario) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if not row.call.retries_enabled:
        belongs_to_a_read = row.call.kind in (Kind.READ, Kind.GET_MORE, Kind.CLEANUP)
        options["retryReads" if belongs_to_a_read else "retryWrites"] = False
    if row.own_max_retries is not None:
        options["maxAdaptiveRetries"] = row.own_max_retries
    if selects(row):
        options["serverSelectionTimeoutMS"] = SELECTION_MS
    elif any(fault.timed_out for fault in row.faults):
        options["socketTimeoutMS"] = SHORT_MS
    return options


@dataclass
class Bed:
    """What all rows of one side share: servers, and a client for each set of options."""

    side: Side
    servers: ReplicaSet
    database: str
    clients: dict[frozenset[tuple[str, Any]], Any] = field(default_factory=dict)

    def client(self, row: Scenario) -> Any:
        """One that is connected, of the options that the row asks for."""
        options = options_of(row)
        key = frozenset(options.items())
        if selects(row):
            # Or the monitor that is held might be another client's.
            for other in self.clients.keys() - {key}:
                self.side.do(self.clients.pop(other).close)
        if key not in self.clients:
            self.clients[key] = self.side.client(self.servers.uri, **LOGIN, **options)
        self.wait_for(self.clients[key])
        return self.clients[key]

    def wait_for(self, client: Any) -> None:
        """Until it knows the server, and has a connection."""

        def answers() -> bool:
            with suppress(PyMongoError):
                return bool(self.side.do(client.admin.command, "ping"))
            return False

        wait_until(answers)

    def inject(self, row: Scenario, clock: FakeClock) -> FaultsInOrder:
        """In place of the faults of the row before."""
        self.servers.clear()
        faults = FaultsInOrder(row.faults, clock)
        self.servers.inject(faults)
        return faults

    def arm(
        self, row: Scenario, client: Any, faults: FaultsInOrder, commands: Sequence[str]
    ) -> None:
        """From now on the faults strike: the first one finds no connection, where it is to come
        before anything is sent, and no server that a monitor could bring back."""
        if selects(row):
            faults.arm(commands)
            self._hold_monitor(client, faults)
            if starts_unsent(row):
                self._lose_connections(client)
        else:
            if starts_unsent(row):
                # Not yet armed: it may have to log in itself, and that would take the first fault.
                self._lose_connections(client)
            faults.arm(commands)

    def _hold_monitor(self, client: Any, faults: FaultsInOrder) -> None:
        """Until it waits for a reply that does not come."""

        def is_held() -> bool:
            client._topology._request_check_all()
            self.side.do(client.admin.command, "ping")
            return faults.holds_monitor

        wait_until(is_held)

    def _lose_connections(self, client: Any) -> None:
        """The next attempt has to make one."""
        self.servers.inject(CutBefore("buildInfo"))
        with pytest.raises(AutoReconnect):
            self.side.do(client.admin.command, "buildInfo")
