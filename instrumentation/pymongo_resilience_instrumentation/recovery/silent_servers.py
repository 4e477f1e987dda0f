"""Interrupts attempts that wait for a server that no longer responds, if they would be retried.

A server is checked if another one has become primary in its place, or if an attempt has waited long
and could go to another server. One thread per process waits for the replies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pymongo.errors import AutoReconnect

from pymongo_resilience.clock import Deadline
from pymongo_resilience.config import RecoveryStep
from pymongo_resilience.internal_errors import contain_internal_errors, logger
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.retry_rules import Retry
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience.rules.strategy import NAMED
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.failures.reasons import LostConnectionError
from pymongo_resilience_instrumentation.interceptor import Entered, Interceptor, Row
from pymongo_resilience_instrumentation.retries.after_failure import retry_state_of
from pymongo_resilience_instrumentation.runtime import Runtime

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.protocols import (
        Client,
        Connection,
        Pool,
        Topology,
    )

T = TypeVar("T")

PATIENCE_SHARE, PATIENCE = 0.25, 5.0
"""How long an attempt waits before its server is checked, if it could go to another server: a part
of its timeout, or seconds without one.
"""
ASK_EVERY = 10.0
"""Seconds between two checks of the same server."""
LOOKS = 10
"""How many times to look for attempts on a silent server. Some connect late."""
TICK = 0.05
"""Seconds between two looks of the watcher."""
THREAD = "pymongo_resilience_recovery"
BUILT_IN = tuple(type(each) for each in NAMED.values())
"""The library's own strategies. A strategy of the application is called only for real failures."""
DOING = "while checking whether a server responds"


class Suspicion(NamedTuple):
    """Why a server is checked, and what happens if it does not respond."""

    answers_within: float
    """Seconds in which the server must respond to the check."""
    text: str
    """The text for attempts that were interrupted."""
    needs_choice: bool
    """Only interrupt attempts that could go to another server."""


REPLACED = Suspicion(
    0.2, "interrupted: the server is no longer the primary and does not answer", needs_choice=False
)
# Longer than above, because this server may only be slow. The other one is known to have been
# replaced.
UNANSWERED = Suspicion(
    1.0,
    "interrupted: the server does not answer, and another one can be used",
    needs_choice=True,
)


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield the methods of topologies to wrap, and their interceptors."""
    if RecoveryStep.INTERRUPTIONS not in runtime.config.disabled_recovery:
        for owner in driver.clients.classes("topology", "Topology"):
            yield owner, driver.monitors.CHANGE, PrimaryChange(runtime)


class PrimaryChange(Interceptor):
    """Runs when a topology receives a server's new description."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def succeeded(self, entered: Entered, result: T) -> T:
        with contain_internal_errors("after a check"):
            address = driver.monitors.replaced_primary(entered.instance)
            if address is not None:
                watcher.ask(LivenessCheck(self._runtime, entered.instance, address, REPLACED))
        return result


def look_for_silent_servers(runtime: Runtime, client: Client) -> None:
    """Check the servers for which an attempt has waited long, if it could go to another server.

    Called once a second by the client's background task.
    """
    for attempts in runtime.attempts_in_flight():
        server = attempts.server
        if server is None or attempts.client is not client:
            continue
        if not _has_waited_long(runtime, attempts):
            continue
        topology = driver.clients.topology_of(client)
        address = driver.selection.address(server)
        if driver.monitors.may_ask(topology, address, ASK_EVERY):
            # An attempt on a frozen router would otherwise take all the time of its operation. If
            # the server responds to the check, the operation is only slow, and continues.
            watcher.ask(LivenessCheck(runtime, topology, address, UNANSWERED))


def _has_waited_long(runtime: Runtime, attempts: DriverAttempts) -> bool:
    operation, retries = attempts.operation, attempts.retries
    connection = attempts.connection or operation.handshaking
    # An attempt without a connection is limited by other timeouts.
    if attempts.server is None or connection is None:
        return False
    timeout = operation.limits.timeout
    patience = timeout * PATIENCE_SHARE if timeout else PATIENCE
    now = runtime.executor.clock.now()
    waited = operation.elapsed() if retries is None else now - retries.began
    if waited < patience or not driver.selection.has_choice(attempts):
        return False
    topology = driver.clients.topology_of(attempts.client)
    last_reply = driver.monitors.last_reply_at(topology, driver.selection.address(attempts.server))
    return driver.csot.now() - last_reply >= patience


@dataclass(slots=True, eq=False)
class LivenessCheck:
    """A check whether one server is alive, as seen by one client. Changed only by the watcher's
    thread.
    """

    runtime: Runtime
    topology: Topology
    address: Address
    suspicion: Suspicion
    asked_at: float = field(default_factory=time.monotonic)
    ticks: int = 0
    looks: int = 0

    def tick(self) -> bool:
        """Called every ``TICK`` seconds. Return True when the check is done."""
        # Count ticks instead of reading the clock, which a test may have frozen.
        self.ticks += 1
        if self.ticks * TICK < self.suspicion.answers_within:
            return False
        self.ticks = 0
        self.looks += 1
        return self._look() or self.looks >= LOOKS

    def _look(self) -> bool:
        """Interrupt attempts that wait for the server. Return True if none may be interrupted."""
        pool = driver.connections.pool_at(self.topology, self.address)
        answered = driver.monitors.last_reply_at(self.topology, self.address) >= self.asked_at
        # The server has left, has answered, or the library was turned off.
        if pool is None or pool.closed or answered or not self.runtime.enabled_flag.on:
            return True
        for attempts in self.runtime.attempts_in_flight():
            with contain_internal_errors(DOING):
                if not self.suspicion.needs_choice or driver.selection.has_choice(attempts):
                    self._interrupt(attempts, pool)
        return False

    def _interrupt(self, attempts: DriverAttempts, pool: Pool) -> None:
        """Interrupt one attempt, unless the server responds to it or it would not be retried."""
        connection: Connection | None = attempts.connection or attempts.operation.handshaking
        # Data that arrives on the connection shows that the server is alive, even if its monitor
        # gets no reply.
        if (
            connection is not None
            and driver.connections.is_of(connection, pool)
            and driver.connections.is_silent_for(connection, self.suspicion.answers_within)
            and would_be_retried(self.runtime, attempts)
        ):
            text = self.suspicion.text
            # The attempt's error makes pymongo cancel the check that it has just started. Request
            # another one, so that the client finds out when the server is back.
            driver.monitors.request_next_check(self.topology, self.address)
            driver.connections.end(connection, LostConnectionError(RetryReason.INTERRUPTED, text))
            logger.info("an attempt on %s was %s", address_text(pool.address), text)


class Watcher:
    """The checks of all clients, and the one thread that watches them. Thread-safe.

    The thread runs only while there are checks.
    """

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Remove all checks in a forked child. They and the thread belong to the parent."""
        self._lock = threading.Lock()
        self._questions: list[LivenessCheck] = []
        self._is_running = False

    def ask(self, question: LivenessCheck) -> None:
        """Start a check of a server, and interrupt the attempts on it if it does not respond. Never
        waits.
        """
        # Ask before the watcher looks, so that its look does not count an older answer.
        driver.monitors.request_check(question.topology, question.address)
        with self._lock:
            self._questions.append(question)
            if not self._is_running:
                threading.Thread(target=self._run, name=THREAD, daemon=True).start()
                # Set only after the thread has started: if it cannot start, the next question tries
                # again.
                self._is_running = True

    def _run(self) -> None:
        while True:
            time.sleep(TICK)
            with self._lock:
                questions = list(self._questions)
            settled = [question for question in questions if _is_settled(question)]
            with self._lock:
                for question in settled:
                    self._questions.remove(question)
                if not self._questions:
                    self._is_running = False
                    return
            # Otherwise this frame would keep the clients alive during the next wait.
            del questions, settled


def _is_settled(question: LivenessCheck) -> bool:
    try:
        return question.tick()
    except Exception:
        # No signal handler runs in this thread, so any exception is a bug of the library.
        logger.exception("internal error in pymongo-resilience %s", DOING)
        return True


watcher = Watcher()
"""The watcher of this process."""


def would_be_retried(runtime: Runtime, attempts: DriverAttempts) -> bool:
    """Return True if the rules would retry the attempt if it were interrupted now.

    Called in another thread or task, so the deadline of a first attempt is taken from its
    operation.
    """
    if (retries := attempts.retries) is not None:
        # Copy what the operation's own thread knows, so that counting the failure here does not
        # change it.
        state = replace(retries.state, reasons=[*retries.state.reasons])
    else:
        state = _state_of_first_attempt(runtime, attempts)
    # Do not call the application's strategy for a failure that has not happened.
    if not isinstance(state.strategy, BUILT_IN):
        return False
    failure = Failure(
        error=AutoReconnect(),
        stage=Stage.NOT_SENT if attempts.connection is None else Stage.IN_FLIGHT,
        reason=RetryReason.INTERRUPTED,
        carried_txn_number=attempts.carries_txn_number(),
    )
    state.count(failure)
    return isinstance(runtime.executor.retry_rules.decide(state, failure), Retry)


def _state_of_first_attempt(runtime: Runtime, attempts: DriverAttempts) -> RetryState:
    state, operation = retry_state_of(runtime, attempts), attempts.operation
    if timeout := operation.limits.timeout:
        remaining = timeout - operation.elapsed()
        state.deadline = Deadline.after(runtime.executor.clock, remaining)
    return state
