"""The circuit breakers of each client: checked before an attempt, updated with its outcome.

A batch of a cursor and what follows the first command of a transaction are bound to their server:
never refused, but counted. killCursors and endSessions are neither refused nor counted.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pymongo_resilience import internal_errors
from pymongo_resilience.breakers import Breakers, Permit, State
from pymongo_resilience.rules.events import BreakerClosed, BreakerOpened
from pymongo_resilience.rules.failure import TRANSIENT_TRANSACTION
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.clients.by_client import ByClient

from .breaker_errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.breakers import BreakerSettings, Snapshot
    from pymongo_resilience.clock import Clock
    from pymongo_resilience.rules.events import Listener
    from pymongo_resilience_instrumentation.addresses import Address


class ClientBreakers(Breakers["Address"]):
    """Those of one client, which is not held alive. Thread- and task-safe."""

    def __init__(
        self,
        client: object,
        settings: BreakerSettings,
        clock: Clock,
        changed: Callable[[Address, Snapshot], None],
        *,
        always: bool,
    ) -> None:
        """``always``: also for operations that could go nowhere else."""
        super().__init__(settings, clock, changed)
        self._client = weakref.ref(client)
        self._window = settings.window
        self._always = always

    def admit(self, loop: object, server: object) -> Permit | None:
        """Leave to send an attempt to ``server``, which ``loop`` has selected; None without asking.

        Raises CircuitBreakerOpenError, which is also pymongo's AutoReconnect.
        """
        if not self._always and not driver.selection.has_choice(loop):
            return None
        address = driver.selection.address(server)
        if self.known(address) is None:
            self._keep_known({address})
        found = self.of(address)
        answer = found.try_acquire()
        if isinstance(answer, Permit):
            return answer
        if driver.selection.is_bound(loop):
            return None
        raise refused(
            address_text(address),
            found.snapshot(),
            window=self._window,
            next_probe_in=answer,
            elsewhere=self._is_elsewhere(loop, address),
            # As pymongo labels it where no server could be selected.
            labels=[TRANSIENT_TRANSACTION] if driver.retry_loop.in_transaction(loop) else [],
        )

    def _is_elsewhere(self, loop: object, address: Address) -> bool:
        refusing = self.refusing()
        try:
            others = driver.selection.choices(loop, self.without_open)
        except Exception:  # noqa: BLE001 - the selector is the application's
            return False
        return any(other != address and other not in refusing for other in others)

    def without_open(self, servers: list[Any]) -> list[Any]:
        """Those of the driver's descriptions whose breaker lets attempts pass; all where none does.

        Never raises, nor logs: the driver's lock is held.
        """
        try:
            refusing = self.refusing() if len(servers) > 1 else None
            if not refusing:
                return servers
            return [each for each in servers if each.address not in refusing] or servers
        except internal_errors.faults:  # a handler may want the lock, too
            return servers

    def snapshots(self) -> dict[Address, Snapshot]:
        """By server, of those that an attempt was meant for."""
        self._keep_known(set())
        return super().snapshots()

    def _keep_known(self, more: set[Address]) -> None:
        client = self._client()
        if client is not None:
            self.keep(driver.selection.known_addresses(client) | more)


class BreakerRegistry(ByClient[ClientBreakers]):
    """Those of every client. In a forked child every breaker is closed, with a lock of its own."""

    def __init__(
        self, settings: BreakerSettings, clock: Clock, listener: Listener, *, always: bool
    ) -> None:
        self._listener = listener
        super().__init__(
            lambda client: ClientBreakers(client, settings, clock, self._changed, always=always)
        )

    def _changed(self, address: Address, change: Snapshot) -> None:
        server = address_text(address)
        if change.state is State.OPEN:
            event: BreakerOpened | BreakerClosed = BreakerOpened(
                server, change.calls, change.failures, change.next_probe_in
            )
        else:
            event = BreakerClosed(server)
        self._listener.on_event(event)
