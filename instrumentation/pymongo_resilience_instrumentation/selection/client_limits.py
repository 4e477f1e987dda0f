"""The limits of each client, and the attempts that it refuses itself: by load shedding, or by the
circuit breaker of their server. Checked before an attempt, updated with its outcome.

A batch of a cursor and what follows the first command of a transaction are bound to their server:
never refused, but counted. killCursors and endSessions are neither refused nor counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from random import random
from typing import Any, TypeVar

from pymongo.errors import AutoReconnect

from pymongo_resilience import errors
from pymongo_resilience.breakers import BreakerSettings, CircuitBreaker, Permit, Snapshot, State
from pymongo_resilience.clock import Clock
from pymongo_resilience.config import OFF, TOKENS, Config
from pymongo_resilience.events import BreakerClosed, BreakerOpened, Listener
from pymongo_resilience.rules.budget import RatioBudget, RetryBudget, TokenBucket
from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED, TRANSIENT_TRANSACTION
from pymongo_resilience.rules.limits import Limits, LoadShedder
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.clients import client_options


class CircuitBreakerOpenError(errors.CircuitBreakerOpenError, AutoReconnect):
    """An AutoReconnect, as every ``except`` clause knows one: nothing was sent."""


class OverloadShedError(errors.OverloadShedError, AutoReconnect):
    """An AutoReconnect, as every ``except`` clause knows one: nothing was sent."""


Server = TypeVar("Server")
Kept = TypeVar("Kept", CircuitBreaker, LoadShedder)


class ByServer(dict[Server, Kept]):
    """What one client has for each server, made as it is used. Thread- and task-safe: each step is
    one of a dict's."""

    def __init__(self, make: Callable[[Server], Kept]) -> None:
        super().__init__()
        self._make: Callable[[Server], Kept] = make

    def __missing__(self, server: Server) -> Kept:
        return self.setdefault(server, self._make(server))

    def reset_after_fork(self) -> None:
        """In a forked child: new locks, and no breaker is open."""
        for each in self.values():
            each.reset_after_fork()


class ClientLimits(Limits):
    """The limits of one client, which is not held alive. Thread- and task-safe."""

    shedders: ByServer[str, LoadShedder] | None = None
    breakers: ClientBreakers | None = None

    def __init__(
        self, config: Config | None, clock: Clock, listener: Listener, client: object
    ) -> None:
        """``config``: None where pymongo's own loop decides, and nothing is limited."""
        super().__init__()
        if config is None:
            return
        self.budget = _budget(client_options.adaptive.get(id(client)), config, clock)
        if config.load_shedding:
            self.shedders = ByServer(lambda _: LoadShedder(clock, random))
        if config.circuit_breaker != OFF:
            self.breakers = ClientBreakers(client, config, clock, listener)

    def admit(self, loop: object, server: object, priority: str) -> Permit | None:
        """Before anything is sent to the server that was selected; the breaker's permit, where it
        was asked. Raises OverloadShedError or CircuitBreakerOpenError."""
        address = driver.selection.address(server)
        if self.shedders is not None and not driver.selection.is_bound(loop):
            text = address_text(address)
            shedder = self.shedders[text]
            if not shedder.admits(priority):
                raise _shed_error(text, shedder.refused(priority), priority, _transient(loop))
        return None if self.breakers is None else self.breakers.admit(loop, address)

    def reset_after_fork(self) -> None:
        """In a forked child: new locks, full budgets, and no breaker is open."""
        for each in (self.budget, self.shedders, self.breakers):
            if each is not None:
                each.reset_after_fork()


def _budget(adaptive: bool | None, config: Config, clock: Clock) -> RetryBudget | None:
    """``adaptive``: what the client says itself."""
    kind = config.retry_budget
    if adaptive is not None:
        kind = TOKENS if adaptive else OFF
    if kind == OFF:
        return None
    return TokenBucket() if kind == TOKENS else RatioBudget(clock=clock)


class ClientBreakers(ByServer[Address, CircuitBreaker]):
    """The breakers of one client, which is not held alive. Thread- and task-safe."""

    def __init__(self, client: object, config: Config, clock: Clock, listener: Listener) -> None:
        settings = BreakerSettings(
            failure_rate=config.circuit_breaker_failure_rate,
            window=config.circuit_breaker_window_s,
            minimum_calls=config.circuit_breaker_minimum_calls,
            open_for=config.circuit_breaker_open_s,
        )
        super().__init__(lambda at: CircuitBreaker(settings, clock, partial(self._publish, at)))
        self._client = weakref.ref(client)
        self._listener = listener
        self._always = config.circuit_breaker == "always"
        """Also for operations that could go nowhere else."""

    def admit(self, loop: object, address: Address) -> Permit | None:
        """Leave to send an attempt; None without asking. Raises CircuitBreakerOpenError."""
        if not self._always and not driver.selection.has_choice(loop):
            return None
        if address not in self:
            self._forget_all_but({address})
        answer = self[address].try_acquire()
        if isinstance(answer, Permit):
            return answer
        if driver.selection.is_bound(loop):
            return None
        raise breaker_error(
            address,
            self[address],
            next_probe_in=answer,
            elsewhere=self._is_elsewhere(loop, address),
            labels=_transient(loop),
        )

    def _is_elsewhere(self, loop: object, address: Address) -> bool:
        refusing = self.refusing()
        try:
            others = driver.selection.choices(loop, self.without_open)
        except Exception:  # noqa: BLE001 - the selector is the application's
            return False
        return any(other != address and other not in refusing for other in others)

    def refusing(self) -> set[Address]:
        """The servers to which nothing may be sent now."""
        return {at for at, breaker in self.copy().items() if breaker.next_probe_in() > 0}

    def without_open(self, servers: Sequence[Any]) -> Sequence[Any]:
        """The descriptions whose breaker lets attempts pass; all where none does. Never logs: the
        driver's lock is held."""
        refusing = self.refusing()
        return [each for each in servers if each.address not in refusing] or servers

    def snapshots(self) -> dict[Address, Snapshot]:
        """By server, of those that an attempt was meant for."""
        self._forget_all_but(set())
        return {at: breaker.snapshot() for at, breaker in self.copy().items()}

    def _forget_all_but(self, more: set[Address]) -> None:
        """Forget the servers that have left: the breaker of one that returns begins anew."""
        client = self._client()
        if client is not None:
            for left in self.copy().keys() - driver.selection.known_addresses(client) - more:
                self.pop(left, None)

    def _publish(self, address: Address, change: Snapshot) -> None:
        server = address_text(address)
        event: BreakerOpened | BreakerClosed = BreakerClosed(server)
        if change.state is State.OPEN:
            event = BreakerOpened(server, change.calls, change.failures, change.next_probe_in)
        self._listener.on_event(event)


def _shed_error(
    address: str, refused: float, priority: str, labels: list[str]
) -> OverloadShedError:
    error = OverloadShedError(
        f"nothing was sent: {address} rejects most of what it is sent, so this client refuses "
        f"{refused:.0%} of its operations of {priority} priority "
        "(PYMONGO_RESILIENCE_LOAD_SHEDDING=false switches that off)",
        {"errorLabels": [SYSTEM_OVERLOADED, RETRYABLE, *labels]},
    )
    vars(error).update(server=address, priority=priority, refused=refused)
    return error


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
    half_open = found.state is State.HALF_OPEN
    error = CircuitBreakerOpenError(
        f"nothing was sent: the circuit breaker of {server} is "
        f"{'half-open, and its probes are under way' if half_open else 'open'}; "
        f"{found.failures} of {found.calls} calls within {breaker.settings.window:g} s had failed; "
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


def _transient(loop: object) -> list[str]:
    """The label that pymongo gives where no server could be selected."""
    return [TRANSIENT_TRANSACTION] if driver.retry_loop.in_transaction(loop) else []
