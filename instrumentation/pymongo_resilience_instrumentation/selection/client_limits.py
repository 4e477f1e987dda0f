"""The limits of each client: its retry budget, and the circuit breakers of its servers, which are
checked before an attempt and updated with its outcome.

A batch of a cursor and what follows the first command of a transaction are bound to their server:
never refused, but counted. killCursors and endSessions are neither refused nor counted.
"""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import TYPE_CHECKING

from pymongo.errors import AutoReconnect

from pymongo_resilience import errors
from pymongo_resilience.breakers import CircuitBreaker, Permit, Snapshot, State
from pymongo_resilience.clock import Clock
from pymongo_resilience.config import BreakerMode, BudgetKind, Config
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.events import BreakerClosed, BreakerOpened, Listener
from pymongo_resilience.internal_errors import internal_error_types
from pymongo_resilience.rules.budget import UNLIMITED, RatioBudget, RetryBudget, TokenBucket
from pymongo_resilience.rules.failure import TRANSIENT_TRANSACTION, Failure
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.clients import client_options

if TYPE_CHECKING:
    from pymongo.server_description import ServerDescription

    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.protocols import Client, ServerFilter, Servers


class CircuitBreakerOpenError(errors.CircuitBreakerOpenError, AutoReconnect):
    """An AutoReconnect, as every ``except`` clause knows one: nothing was sent."""


class ClientLimits:
    """The limits of one client, which is not held alive. Thread- and task-safe."""

    budget: RetryBudget = UNLIMITED
    breakers: ClientBreakers | None = None

    def __init__(
        self, config: Config | None, clock: Clock, listener: Listener, client: Client
    ) -> None:
        """``config``: None where pymongo's own loop decides, and nothing is limited."""
        self.overloaded_at = -math.inf
        """When an attempt was last rejected as overloaded, on the clock."""
        self._clock = clock
        if config is None:
            return
        kind, adaptive = config.retry_budget, getattr(client, client_options.KEPT, None)
        if adaptive is not None:
            kind = BudgetKind.TOKENS if adaptive else BudgetKind.OFF
        if kind != BudgetKind.OFF:
            self.budget = TokenBucket() if kind == BudgetKind.TOKENS else RatioBudget(clock)
        if config.circuit_breaker != BreakerMode.OFF:
            self.breakers = ClientBreakers(client, config, clock, listener)

    def failed(self, failure: Failure, state: RetryState) -> None:
        """Take note of a failed attempt, before ``state`` counts it."""
        if failure.overloaded:
            self.overloaded_at = self._clock.now()
        if failure.rejected and state.rejections == 0:
            state.rejected_since = self._clock.now()
        granted = self.budget.failed(
            failure, retried=state.attempts > 0, rejections=state.rejections, began=state.began
        )
        state.in_grace = state.in_grace or granted

    def reset_after_fork(self) -> None:
        """In a forked child: new locks, full budgets, and no breaker is open."""
        self.budget.reset_after_fork()
        for breaker in (self.breakers or {}).values():
            breaker.reset_after_fork()


class ClientBreakers(dict[Address, CircuitBreaker]):
    """The breakers of one client, which is not held alive, made as its servers are used.

    Thread- and task-safe: each step is one of a dict's.
    """

    def __init__(self, client: Client, config: Config, clock: Clock, listener: Listener) -> None:
        self._config, self._clock = config, clock
        self._client = weakref.ref(client)
        self._listener = listener
        self._always = config.circuit_breaker == BreakerMode.ALWAYS
        """Also for operations that could go nowhere else."""

    def __missing__(self, address: Address) -> CircuitBreaker:
        made = CircuitBreaker(self._config, self._clock, partial(self._publish, address))
        return self.setdefault(address, made)

    def admit(self, attempts: DriverAttempts, address: Address) -> Permit | None:
        """Leave to send an attempt; None without asking. Raises CircuitBreakerOpenError."""
        if not self._always and not driver.selection.has_choice(attempts):
            return None
        if address not in self:
            self._forget_those_that_left()
        answer = self[address].try_acquire()
        if isinstance(answer, Permit):
            return answer
        if driver.selection.is_bound(attempts):
            return None
        raise breaker_error(
            address,
            self[address],
            next_probe_in=answer,
            elsewhere=self._is_elsewhere(attempts, address),
            # As pymongo has it where no server could be selected.
            labels=[TRANSIENT_TRANSACTION] if attempts.in_transaction() else [],
        )

    def _is_elsewhere(self, attempts: DriverAttempts, address: Address) -> bool:
        refusing = self.refusing()
        try:
            others = driver.selection.choices(attempts, self.without_open)
        except Exception:  # noqa: BLE001 - the selector is the application's
            return False
        return any(other != address and other not in refusing for other in others)

    def refusing(self) -> set[Address]:
        """The servers to which nothing may be sent now."""
        return {at for at, breaker in self.copy().items() if breaker.next_probe_in() > 0}

    def without_open(self, servers: Servers) -> Servers:
        """The descriptions whose breaker lets attempts pass; all where none does. Never logs: the
        driver's lock is held."""
        refusing = self.refusing()
        return [each for each in servers if each.address not in refusing] or servers

    def snapshots(self) -> dict[Address, Snapshot]:
        """By server, of those that an attempt was meant for."""
        self._forget_those_that_left()
        return {at: breaker.snapshot() for at, breaker in self.copy().items()}

    def _forget_those_that_left(self) -> None:
        """Forget the servers that have left: the breaker of one that returns begins anew."""
        client = self._client()
        if client is not None:
            for left in self.copy().keys() - driver.selection.known_addresses(client):
                self.pop(left, None)

    def _publish(self, address: Address, change: Snapshot) -> None:
        server = address_text(address)
        event: BreakerOpened | BreakerClosed = BreakerClosed(server)
        if change.state is State.OPEN:
            event = BreakerOpened(server, change.calls, change.failures, change.next_probe_in)
        self._listener.on_event(event)


def breaker_error(
    address: Address,
    breaker: CircuitBreaker,
    *,
    next_probe_in: float,
    elsewhere: bool,
    labels: list[str],
) -> CircuitBreakerOpenError:
    """``next_probe_in``: in seconds."""
    server, found = address_text(address), breaker.snapshot()
    half_open, window = found.state is State.HALF_OPEN, breaker.config.circuit_breaker_window_s
    error = CircuitBreakerOpenError(
        f"nothing was sent: the circuit breaker of {server} is "
        f"{'half-open, and its probes are under way' if half_open else 'open'}; "
        f"{found.failures} of {found.calls} calls within {window:g} s had failed; "
        f"next probe in {next_probe_in:.3f} s "
        "(PYMONGO_RESILIENCE_CIRCUIT_BREAKER=off switches circuit breakers off)",
        {"errorLabels": labels},
    )
    vars(error).update(
        server=server,
        next_probe_in=next_probe_in,
        calls=found.calls,
        failures=found.failures,
        elsewhere=elsewhere,
    )
    return error


class ServerSelector:
    """The ``server_selector`` of a client that has circuit breakers: the application's own, then
    ours, which leaves out the servers whose breaker is open. Thread- and task-safe.

    The driver calls it with the servers that the read preference has left, before its latency
    window, and under its topology's lock: nothing here logs or waits, and after an internal error
    all servers pass.
    """

    def __init__(
        self, own: ServerFilter, enabled_flag: EnabledFlag, breakers: ClientBreakers
    ) -> None:
        """``own``: the client's."""
        self.own = own
        self._enabled_flag = enabled_flag
        self._breakers = breakers

    def __call__(self, servers: list[ServerDescription]) -> Servers:
        found = self.own(servers)
        if not self._enabled_flag.on or not isinstance(found, (list, tuple)):
            return found
        try:
            return self._breakers.without_open(found)
        except internal_error_types():  # under the driver's lock an internal error is not logged
            return found
