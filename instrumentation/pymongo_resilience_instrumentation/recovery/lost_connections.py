"""Connections that are given up: to dead peers, by the kernel; and to a former primary, or to one
of several servers, that no longer answers, whose attempts are interrupted if they would be retried.
And the reason for which a connection was lost, where pymongo knows only that it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from pymongo.errors import AutoReconnect

from pymongo_resilience.clock import Deadline
from pymongo_resilience.config import INTERRUPTIONS
from pymongo_resilience.internal_errors import faults, logger, shielded
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Retry
from pymongo_resilience.rules.strategy import NAMED
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.reasons import (
    AttemptInterruptedError,
    LostConnectionError,
)
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    Row,
    Wrapper,
)
from pymongo_resilience_instrumentation.retries.failed_attempts import described
from pymongo_resilience_instrumentation.retries.retry_loop import RetryLoop
from pymongo_resilience_instrumentation.runtime import Runtime

ANSWERS_WITHIN = 0.2
"""Seconds that a former primary has to answer a check."""
SILENT = "interrupted: the server is no longer the primary and does not answer"
PATIENCE_SHARE, PATIENCE = 0.25, 5.0
"""The part of its timeout, or without one the seconds, for which an attempt that could go to
another server waits before its server is asked whether it lives."""
ASKED_ANSWERS_WITHIN = 1.0
"""Seconds that such a server has to answer a check: longer than a former primary, of which it is
known that another took its place."""
ASK_EVERY = 10.0
"""Seconds between two such questions to a server."""
UNANSWERED = "interrupted: the server does not answer, and another one can be used"
LOOKS = 10
"""How many times, ANSWERS_WITHIN apart, its attempts are looked for: some connect late."""
THREAD = "pymongo_resilience_recovery"
BUILT_IN = tuple(type(each) for each in NAMED.values())
"""Another strategy is the application's, and is asked about failures that happened only."""


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """What to wrap of connections, and with what."""
    for owner in driver.connections.connections_with(driver.connections.FAILED):
        yield owner, driver.connections.FAILED, failed(runtime)


def failed(runtime: Runtime) -> Wrapper:
    """What ends a connection: closes it, and always raises; in async clients an awaitable."""
    flag = runtime.enabled_flag
    seconds = runtime.config.dead_peer_s if driver.connections.can_watch() else 0

    def wrapper(original: Function, connection: Any, args: Any, kwargs: Any) -> Any:
        [error] = args or kwargs.values()
        try:
            if flag.on and isinstance(error, Exception):
                error = _named(connection, error, seconds)
        except faults():
            logger.exception("internal error in pymongo-resilience before a connection was closed")
        return original(error)

    return wrapper


def _dead_peer(seconds: int) -> LostConnectionError:
    text = f"connection closed: the server's host has acknowledged nothing for {seconds} s"
    return LostConnectionError(RetryReason.DEAD_PEER, text)


class DeadPeers(Interceptor):
    """Before each run of a client's background task, once a second: end the attempts whose requests
    the server's host does not acknowledge. The kernel does so only after a quarter of an hour, and
    its option for less time also ends connections to hosts that answer, but have no room."""

    def __init__(self, runtime: Runtime, seconds: int) -> None:
        self._runtime = runtime
        self._seconds = seconds

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        for attempt in self._runtime.attempts_in_flight():
            with shielded("before the background task"):
                connection = attempt.connection or attempt.operation.handshaking
                if (
                    attempt.client is given[0]
                    and connection is not None
                    and driver.connections.peer_is_gone(connection, self._seconds)
                ):
                    driver.connections.end(connection, _dead_peer(self._seconds))


def _named(connection: Any, error: Exception, seconds: int) -> Exception:
    reason: Any = driver.connections.reason_of(connection)
    if isinstance(error, LostConnectionError):
        reason = error
    elif (
        reason is None
        and seconds
        and (isinstance(error, OSError) or driver.monitors.was_cancelled(error))
        and driver.connections.peer_was_silent(connection, error, seconds)
    ):
        reason = _dead_peer(seconds)
    if reason is None:
        return error
    driver.connections.count_lost(connection, reason.reason.value)
    named: Exception = reason
    if reason.reason is RetryReason.INTERRUPTED:
        named = AttemptInterruptedError(f"{address_text(connection.address)}: {reason}")
        named.__cause__ = reason
    return named


def of_primaries(runtime: Runtime) -> Iterator[Row]:
    """What to wrap of topologies and of handshakes, and with what."""
    if INTERRUPTIONS not in runtime.config.disabled_recovery:
        for owner in driver.clients.classes("topology", "Topology"):
            yield owner, driver.monitors.CHANGE, PrimaryChange(runtime)
    for owner in driver.connections.connections_with(driver.connections.HELLO):
        yield owner, driver.connections.HELLO, Hello()


class PrimaryChange(Interceptor):
    """A topology takes note of a server's new description."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def succeeded(self, entered: Entered, result: Any) -> Any:
        with shielded("after a check"):
            address = driver.monitors.replaced_primary(entered.instance)
            if address is not None:
                watch = partial(_watch, self._runtime, entered.instance, address)
                threading.Thread(target=watch, name=THREAD, daemon=True).start()
        return result


class Hello(Interceptor):
    """The handshake of a connection for operations."""

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        if (operation := in_progress.current()) is not None:
            operation.handshaking = given[0]
        return Entered(given[0])

    def succeeded(self, entered: Entered, result: Any) -> Any:
        try:
            driver.connections.ignore_transient_state(entered.instance, result)
        except faults():
            logger.exception("internal error in pymongo-resilience after a handshake")
        return result


def look_for_silent_servers(runtime: Runtime, client: Any) -> None:
    """Called once a second by the client's background task: ask servers whether they live if an
    attempt has waited long for one and could go to another.

    An attempt on a frozen router would take all the time that its operation has. It has no time
    limit of its own: if its server answers the check, the operation is merely slow, and goes on."""
    for attempt in runtime.attempts_in_flight():
        if attempt.client is not client or not _has_waited_long(runtime, attempt):
            continue
        topology = driver.clients.topology_of(client)
        address = driver.selection.address(attempt.server)
        if driver.monitors.may_ask(topology, address, ASK_EVERY):
            watch = partial(_watch, runtime, topology, address, ASKED_ANSWERS_WITHIN, UNANSWERED)
            threading.Thread(target=watch, name=THREAD, daemon=True).start()


def _has_waited_long(runtime: Runtime, attempt: RetryLoop) -> bool:
    operation, now = attempt.operation, runtime.executor.clock.now()
    connection = attempt.connection or operation.handshaking
    if attempt.server is None or connection is None:
        return False
    patience = operation.timeout * PATIENCE_SHARE if operation.timeout else PATIENCE
    waited = now - attempt.began if attempt.began else operation.elapsed()
    if waited < patience or not driver.selection.has_choice(attempt):
        return False
    topology = driver.clients.topology_of(attempt.client)
    answered = driver.monitors.last_reply_at(topology, driver.selection.address(attempt.server))
    return driver.csot.now() - answered >= patience


def _watch(
    runtime: Runtime,
    topology: Any,
    address: Address,
    within: float = ANSWERS_WITHIN,
    reason: str = SILENT,
) -> None:
    """In a thread of its own: ask a server whether it lives, then interrupt what waits for it
    needlessly. It has ``within`` seconds to answer."""
    with shielded("while a server was asked whether it lives"):
        asked_at = time.monotonic()
        driver.monitors.request_check(topology, address)
        for _ in range(LOOKS):
            time.sleep(within)
            pool = driver.connections.pool_at(topology, address)
            answered = driver.monitors.last_reply_at(topology, address) >= asked_at
            if pool is None or pool.closed or answered or not runtime.enabled_flag.on:
                return
            for attempt in runtime.attempts_in_flight():
                with shielded("while a server was asked whether it lives"):
                    if reason is SILENT or driver.selection.has_choice(attempt):
                        _interrupt(runtime, attempt, pool, within, reason)


def _interrupt(runtime: Runtime, attempt: RetryLoop, pool: Any, within: float, reason: str) -> None:
    connection = attempt.connection or attempt.operation.handshaking
    if (
        connection is not None
        and driver.connections.is_of(connection, pool)
        and driver.connections.nothing_arrived_for(connection, within)
        and would_be_repeated(runtime, attempt)
    ):
        driver.connections.end(connection, LostConnectionError(RetryReason.INTERRUPTED, reason))
        logger.info("an attempt on %s was %s", address_text(pool.address), reason)


def would_be_repeated(runtime: Runtime, attempt: RetryLoop) -> bool:
    """Whether the rules would repeat the attempt, were it interrupted now. In another thread or
    task: what only its own context says counts as no."""
    operation, executor = attempt.operation, runtime.executor
    state = described(attempt)
    if operation.timeout:
        state.deadline = Deadline.after(executor.clock, operation.timeout - operation.elapsed())
    if not isinstance(state.strategy, BUILT_IN):
        return False
    state.attempts = len(operation.history.reasons)
    failure = Failure(
        error=AutoReconnect(),
        stage=Stage.NOT_SENT if attempt.connection is None else Stage.IN_FLIGHT,
        reason=RetryReason.INTERRUPTED,
        carried_txn_number=attempt.carries_txn_number(),
    )
    state.count(failure)
    return isinstance(executor.retry_rules.decide(state, failure), Retry)
