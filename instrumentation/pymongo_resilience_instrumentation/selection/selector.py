"""The ``server_selector`` of clients whose servers the library filters or chooses, and how many
attempts are in progress on each server, counted from its selection on.

The driver calls it with the servers that the read preference has left, before its latency window,
and under its topology's lock: nothing here logs or waits, and after an internal error all
servers pass.

Source: Server Selection, "operationCount-based selection within the latency window".
"""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo_resilience import internal_errors
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.server_choice.server_load import PeakEwma, choose
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.clients.by_client import ByClient

from .refusals import ClientBreakers


class OperationCounts:
    """Counts one client's attempts in progress, each on one server. Thread- and task-safe: each
    step is one of a dict's."""

    def __init__(self, latencies: PeakEwma | None = None) -> None:
        """``latencies``: None where they do not matter."""
        self.latencies = latencies
        self.servers: dict[AttemptCount, str] = {}

    @property
    def by_address(self) -> Mapping[str, int]:
        """The servers that have some."""
        return Counter(self.servers.copy().values())

    def reset_after_fork(self) -> None:
        """In a forked child: the attempts in progress are the parent's."""
        self.servers.clear()

    def of_attempt(self) -> AttemptCount:
        return AttemptCount(self)


@dataclass(slots=True, eq=False, repr=False)
class AttemptCount:
    """One attempt, counted on one server at most. Belongs to its thread or task."""

    _counts: OperationCounts
    _began: float | None = None

    def take(self, address: str) -> None:
        """The attempt goes to this server, wherever it was counted before."""
        if self._counts.servers.get(self) != address:
            self._counts.servers[self], self._began = address, None

    def measure(self) -> None:
        """The attempt's server was chosen among several: its duration is a sample of latency."""
        if self._counts.latencies is not None:
            self._began = self._counts.latencies.begin()

    def release(self, *, succeeded: bool = False) -> None:
        """The attempt is over. Once more, it changes nothing."""
        began, self._began = self._began, None
        address = self._counts.servers.pop(self, None)
        if address is not None and began is not None and self._counts.latencies is not None:
            self._counts.latencies.end(address, began, succeeded=succeeded)


class ServerSelector:
    """The application's own first, then ours. Counts what it chose for the attempt that is
    selecting, if one is. The driver calls it with its topology's lock held."""

    def __init__(
        self,
        client: Any,
        own: Any,
        enabled_flag: EnabledFlag,
        counts: OperationCounts | None,
        breakers: ClientBreakers | None,
    ) -> None:
        """Without ``counts`` the driver chooses; without ``breakers`` no server is left out."""
        self.own = own
        self.counts = counts
        self._client = weakref.ref(client)
        self._enabled_flag = enabled_flag
        self._breakers = breakers

    def __repr__(self) -> str:
        return repr(self.own)

    def __call__(self, servers: Any) -> Any:
        found = servers if self.own is None else self.own(servers)
        if not self._enabled_flag.on or not found or not isinstance(found, (list, tuple)):
            return found
        try:
            return self._narrowed(found)
        except internal_errors.faults:  # under the driver's lock an internal error is not logged
            return found

    def _narrowed(self, found: Any) -> Any:
        if self._breakers is not None:
            found = self._breakers.without_open(found)
        if self.counts is None:
            return found
        chosen = found[0] if len(found) == 1 else self._least_loaded(found, self.counts)
        call = calls.current()
        if call is not None and call.selecting is not None:
            call.selecting.take(address_text(chosen.address))
            if len(found) > 1:
                # Not of a write, nor of what waits for data on the server of its cursor.
                call.selecting.measure()
        return [chosen]

    def _least_loaded(self, found: Any, counts: OperationCounts) -> Any:
        client = self._client()
        if client is None:
            return found[0]
        near = in_latency_window(found, client.options.local_threshold_ms / 1000)
        by_address = {address_text(each.address): each for each in near}
        loads: Mapping[str, float] = counts.by_address
        if counts.latencies is not None:
            counts.latencies.keep(map(address_text, driver.selection.known_addresses(client)))
            loads = counts.latencies.loads(by_address, counts.by_address)
        return by_address[choose(list(by_address), loads, random.random)]


def in_latency_window(servers: Sequence[Any], threshold: float) -> list[Any]:
    """The nearest of the driver's descriptions, and those at most ``threshold`` seconds farther
    away. Source: Server Selection, "Filtering suitable servers based on the latency window"."""
    end = min(each.round_trip_time for each in servers) + threshold
    return [each for each in servers if each.round_trip_time <= end]


def applications_own(selector: object) -> Any:
    """Without ours around it; a client may be made from the options of another one."""
    while isinstance(selector, ServerSelector):
        selector = selector.own
    return None if driver.selection.is_no_selector(selector) else selector


class Selectors:
    """Makes a client's selector, and keeps its counts. Holds no client alive. Thread- and
    task-safe."""

    def __init__(
        self,
        enabled_flag: EnabledFlag,
        breakers: ByClient[ClientBreakers] | None,
        latencies: Callable[[], PeakEwma] | None,
        *,
        counting: bool,
    ) -> None:
        """``breakers``: None while they are off. ``counting``: servers are chosen by load;
        ``latencies``: and by latency, each client's made by this."""
        self._enabled_flag = enabled_flag
        self._breakers = breakers
        self.counting = counting
        self._counts = ByClient(lambda _: OperationCounts(latencies and latencies()))

    def of_new_client(self, client: object, given: object) -> ServerSelector:
        """The selector for a client that is being made, around the one it was given."""
        breakers = None if self._breakers is None else self._breakers.of(client)
        counts = self._counts.of(client) if self.counting else None
        return ServerSelector(client, applications_own(given), self._enabled_flag, counts, breakers)

    def counts_of(self, client: object) -> OperationCounts | None:
        """None for a client that was made before ``instrument()``."""
        return self._counts.known(client)

    def reset_after_fork(self) -> None:
        """In a forked child, nothing is in progress."""
        self._counts.reset_after_fork()
