"""The limits of each client: its retry budget and the circuit breakers of its servers.

They are checked before an attempt and updated with its outcome. Later batches of a cursor and later
commands of a transaction are bound to one server: they are counted but never refused. killCursors
and endSessions are neither counted nor refused.
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
    """Raised in place of an attempt. It is an AutoReconnect, so existing ``except`` clauses handle
    it.
    """


class ClientLimits:
    """The limits of one client. Does not keep the client alive. Thread- and task-safe."""

    budget: RetryBudget = UNLIMITED
    breakers: ClientBreakers | None = None
    selection_timeout: float | None = None
    """The client's ``serverSelectionTimeoutMS`` in seconds; None until it is first needed. Stored
    here because pymongo needs several calls to look it up.
    """

    def __init__(
        self, config: Config | None, clock: Clock, listener: Listener, client: Client
    ) -> None:
        """Create the limits of a client.

        Args:
            config: None if pymongo's own loop decides; then nothing is limited.
            clock: The clock.
            listener: Receives the events of circuit breakers.
            client: The client.
        """
        self.overloaded_at = -math.inf
        """When an attempt was last rejected because of overload, on the clock."""
        self._clock = clock
        if config is None:
            return
        kind, adaptive = config.retry_budget, getattr(client, client_options.KEPT, None)
        # The client's own ``adaptiveRetries`` option takes precedence over the configuration.
        if adaptive is not None:
            kind = BudgetKind.TOKENS if adaptive else BudgetKind.OFF
        if kind != BudgetKind.OFF:
            self.budget = TokenBucket() if kind == BudgetKind.TOKENS else RatioBudget(clock)
        if config.circuit_breaker != BreakerMode.OFF:
            self.breakers = ClientBreakers(client, config, clock, listener)

    def failed(self, failure: Failure, state: RetryState) -> None:
        """Count a failed attempt. Called before ``state`` counts it."""
        if failure.overloaded:
            self.overloaded_at = self._clock.now()
        # Remember the first rejection: the budget's patience is measured from it.
        if failure.rejected and state.rejections == 0:
            state.rejected_since = self._clock.now()
        in_grace = self.budget.failed(
            failure, retried=state.attempts > 0, rejections=state.rejections, began=state.began
        )
        state.in_grace = state.in_grace or in_grace

    def reset_after_fork(self) -> None:
        """Reset everything in a forked child: new locks, full budgets, closed breakers."""
        self.budget.reset_after_fork()
        for breaker in (self.breakers or {}).values():
            breaker.reset_after_fork()


class ClientBreakers(dict[Address, CircuitBreaker]):
    """The circuit breakers of one client, created when its servers are first used.

    Does not keep the client alive. Thread- and task-safe, because each step is one operation on a
    dict.
    """

    def __init__(self, client: Client, config: Config, clock: Clock, listener: Listener) -> None:
        self._config, self._clock = config, clock
        self._client = weakref.ref(client)
        self._listener = listener
        self._always = config.circuit_breaker == BreakerMode.ALWAYS
        """Also refuse operations that no other server could handle."""

    def __missing__(self, address: Address) -> CircuitBreaker:
        breaker = CircuitBreaker(self._config, self._clock, partial(self._publish, address))
        # Another thread may have created a breaker for the server in the meantime; both must use
        # the same.
        return self.setdefault(address, breaker)

    def admit(self, attempts: DriverAttempts, address: Address) -> Permit | None:
        """Return a permit for an attempt, or None if none is needed.

        Raises:
            CircuitBreakerOpenError: If the breaker refuses the attempt.
        """
        # In the mode "on", an attempt is refused only if it could go to another server.
        if not self._always and not driver.selection.has_choice(attempts):
            return None
        # A new server has appeared, so this is a rare and good moment to forget old ones.
        if address not in self:
            self._forget_those_that_left()
        answer = self[address].try_acquire()
        if isinstance(answer, Permit):
            return answer
        # A cursor or a transaction cannot move to another server, so refusing it would only break
        # it.
        if driver.selection.is_bound(attempts):
            return None
        raise breaker_error(
            address,
            self[address],
            next_probe_in=answer,
            elsewhere=self._is_elsewhere(attempts, address),
            # pymongo adds the same label if no server could be selected in a transaction.
            labels=[TRANSIENT_TRANSACTION] if attempts.in_transaction() else [],
        )

    def _is_elsewhere(self, attempts: DriverAttempts, address: Address) -> bool:
        refusing = self.refusing()
        try:
            others = driver.selection.choices(attempts, self.without_open)
        except Exception:  # noqa: BLE001 - the selector is the application's
            # The application's server selector may raise.
            return False
        return any(other != address and other not in refusing for other in others)

    def refusing(self) -> set[Address]:
        """Return the addresses of the servers whose breaker is open."""
        # Copy the dictionary, because another thread may add a server during the loop.
        return {at for at, breaker in self.copy().items() if breaker.next_probe_in() > 0}

    def without_open(self, servers: Servers) -> Servers:
        """Return the servers whose breaker allows attempts, or all servers if none does.

        Never logs, because the topology's lock is held.
        """
        refusing = self.refusing()
        return [server for server in servers if server.address not in refusing] or servers

    def snapshots(self) -> dict[Address, Snapshot]:
        """Return the state of each breaker by address."""
        self._forget_those_that_left()
        return {at: breaker.snapshot() for at, breaker in self.copy().items()}

    def _forget_those_that_left(self) -> None:
        """Remove the breakers of servers that have left the deployment.

        A server that returns gets a new breaker.
        """
        client = self._client()
        if client is not None:
            for address in self.copy().keys() - driver.selection.known_addresses(client):
                self.pop(address, None)

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
    """Return the error for a refused attempt.

    Args:
        address: The server.
        breaker: Its circuit breaker.
        next_probe_in: Seconds until it allows a probe.
        elsewhere: Whether another server can be selected at once.
        labels: The error's labels.
    """
    server, snapshot = address_text(address), breaker.snapshot()
    is_half_open, window = (
        snapshot.state is State.HALF_OPEN,
        breaker.config.circuit_breaker_window_s,
    )
    error = CircuitBreakerOpenError(
        f"nothing was sent: the circuit breaker of {server} is "
        f"{'half-open, and its probes are in progress' if is_half_open else 'open'}. It opened "
        f"because {snapshot.failures} of {snapshot.calls} calls within {window:g} s failed. Check "
        f"that server, and try again in {next_probe_in:.3f} s "
        "(PYMONGO_RESILIENCE_CIRCUIT_BREAKER=off turns circuit breakers off)",
        {"errorLabels": labels},
    )
    # The constructor of pymongo's OperationFailure has no parameters for these attributes.
    vars(error).update(
        server=server,
        next_probe_in=next_probe_in,
        calls=snapshot.calls,
        failures=snapshot.failures,
        elsewhere=elsewhere,
    )
    return error


class ServerSelector:
    """The ``server_selector`` of a client with circuit breakers. Thread- and task-safe.

    It applies the application's own selector, then excludes servers whose breaker is open. pymongo
    calls it with the servers that match the read preference, before it applies the latency window,
    and holds the topology's lock. So it neither logs nor waits, and after an internal error all
    servers pass.
    """

    def __init__(
        self, own: ServerFilter, enabled_flag: EnabledFlag, breakers: ClientBreakers
    ) -> None:
        """``own`` is the application's selector."""
        self.own = own
        self._enabled_flag = enabled_flag
        self._breakers = breakers

    def __call__(self, servers: list[ServerDescription]) -> Servers:
        accepted = self.own(servers)
        if not self._enabled_flag.on or not isinstance(accepted, (list, tuple)):
            return accepted
        try:
            return self._breakers.without_open(accepted)
        except internal_error_types():
            # The topology's lock is held. The error is not logged, because a log handler might need
            # the same lock.
            return accepted
