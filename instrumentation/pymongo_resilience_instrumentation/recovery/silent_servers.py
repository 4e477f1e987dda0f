"""Servers that no longer answer: attempts that wait for one are interrupted, if they would be
retried.

A server is asked whether it lives if another one has become the primary in its place, or if an
attempt has waited long for it and could go to another server. One thread of the process waits for
the answers.
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
from pymongo_resilience_instrumentation.retries.failed_attempts import retry_state_of
from pymongo_resilience_instrumentation.retries.retry_loop import RetryLoop
from pymongo_resilience_instrumentation.runtime import Runtime

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import (
        Client,
        Connection,
        Pool,
        Topology,
    )

T = TypeVar("T")

PATIENCE_SHARE, PATIENCE = 0.25, 5.0
"""The part of its timeout, or without one the seconds, for which an attempt that could go to
another server waits before its server is asked whether it lives."""
ASK_EVERY = 10.0
"""Seconds between two such questions to a server."""
LOOKS = 10
"""How many times a silent server's attempts are looked for: some connect late."""
TICK = 0.05
"""Seconds between two looks of the watcher at its questions."""
THREAD = "pymongo_resilience_recovery"
BUILT_IN = tuple(type(each) for each in NAMED.values())
"""Another strategy is the application's, and is asked about failures that happened only."""
DOING = "while a server was asked whether it lives"


class Suspicion(NamedTuple):
    """Why a server is asked whether it lives, and what follows if it does not answer."""

    answers_within: float
    """Seconds that the server has to answer a check."""
    text: str
    """What has happened to an attempt that was interrupted."""
    needs_choice: bool
    """Interrupt only attempts that could go to another server."""


REPLACED = Suspicion(
    0.2, "interrupted: the server is no longer the primary and does not answer", needs_choice=False
)
# Longer than a former primary, which is known to have been replaced.
UNANSWERED = Suspicion(
    1.0,
    "interrupted: the server does not answer, and another one can be used",
    needs_choice=True,
)


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """What to wrap of topologies, and with what."""
    if RecoveryStep.INTERRUPTIONS not in runtime.config.disabled_recovery:
        for owner in driver.clients.classes("topology", "Topology"):
            yield owner, driver.monitors.CHANGE, PrimaryChange(runtime)


class PrimaryChange(Interceptor):
    """A topology takes note of a server's new description."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def succeeded(self, entered: Entered, result: T) -> T:
        with contain_internal_errors("after a check"):
            address = driver.monitors.replaced_primary(entered.instance)
            if address is not None:
                watcher.ask(LivenessCheck(self._runtime, entered.instance, address, REPLACED))
        return result


def look_for_silent_servers(runtime: Runtime, client: Client) -> None:
    """Called once a second by the client's background task: ask servers whether they live if an
    attempt has waited long for one and could go to another.

    An attempt on a frozen router would take all the time that its operation has. It has no time
    limit of its own: if its server answers the check, the operation is merely slow, and goes on."""
    for attempt in runtime.attempts_in_flight():
        server = attempt.server
        if server is None or attempt.client is not client or not _has_waited_long(runtime, attempt):
            continue
        topology = driver.clients.topology_of(client)
        address = driver.selection.address(server)
        if driver.monitors.may_ask(topology, address, ASK_EVERY):
            watcher.ask(LivenessCheck(runtime, topology, address, UNANSWERED))


def _has_waited_long(runtime: Runtime, attempt: RetryLoop) -> bool:
    operation, now = attempt.operation, runtime.executor.clock.now()
    connection = attempt.connection or operation.handshaking
    if attempt.server is None or connection is None:
        return False
    timeout = operation.limits.timeout
    patience = timeout * PATIENCE_SHARE if timeout else PATIENCE
    waited = now - attempt.began if attempt.began else operation.elapsed()
    if waited < patience or not driver.selection.has_choice(attempt.attempts):
        return False
    topology = driver.clients.topology_of(attempt.client)
    answered = driver.monitors.last_reply_at(topology, driver.selection.address(attempt.server))
    return driver.csot.now() - answered >= patience


@dataclass(slots=True, eq=False)
class LivenessCheck:
    """Whether one server lives, as one client sees it. The watcher's thread alone changes it."""

    runtime: Runtime
    topology: Topology
    address: Address
    suspicion: Suspicion
    asked_at: float = field(default_factory=time.monotonic)
    ticks: int = 0
    looks: int = 0

    def tick(self) -> bool:
        """Called every ``TICK`` seconds. Return True if the question is settled."""
        # Ticks are counted: a test may have frozen the clock.
        self.ticks += 1
        if self.ticks * TICK < self.suspicion.answers_within:
            return False
        self.ticks = 0
        self.looks += 1
        return self._look() or self.looks >= LOOKS

    def _look(self) -> bool:
        """Interrupt what waits for the server needlessly; True if nothing may be interrupted."""
        pool = driver.connections.pool_at(self.topology, self.address)
        answered = driver.monitors.last_reply_at(self.topology, self.address) >= self.asked_at
        if pool is None or pool.closed or answered or not self.runtime.enabled_flag.on:
            return True
        for attempt in self.runtime.attempts_in_flight():
            with contain_internal_errors(DOING):
                if not self.suspicion.needs_choice or driver.selection.has_choice(attempt.attempts):
                    self._interrupt(attempt, pool)
        return False

    def _interrupt(self, attempt: RetryLoop, pool: Pool) -> None:
        connection: Connection | None = attempt.connection or attempt.operation.handshaking
        if (
            connection is not None
            and driver.connections.is_of(connection, pool)
            and driver.connections.is_silent_for(connection, self.suspicion.answers_within)
            and would_be_retried(self.runtime, attempt)
        ):
            text = self.suspicion.text
            driver.connections.end(connection, LostConnectionError(RetryReason.INTERRUPTED, text))
            logger.info("an attempt on %s was %s", address_text(pool.address), text)


class Watcher:
    """The questions of all clients, and the process's one thread that looks at them. It runs while
    there are any. Thread-safe."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: the questions are the parent's, as is the thread."""
        self._lock = threading.Lock()
        self._questions: list[LivenessCheck] = []
        self._is_running = False

    def ask(self, question: LivenessCheck) -> None:
        """Have the server checked, and interrupt what waits for it if it does not answer. Never
        waits."""
        driver.monitors.request_check(question.topology, question.address)
        with self._lock:
            self._questions.append(question)
            if not self._is_running:
                threading.Thread(target=self._run, name=THREAD, daemon=True).start()
                self._is_running = True

    def _run(self) -> None:
        while True:
            time.sleep(TICK)
            with self._lock:
                questions = list(self._questions)
            settled = [each for each in questions if _is_settled(each)]
            with self._lock:
                for each in settled:
                    self._questions.remove(each)
                if not self._questions:
                    self._is_running = False
                    return
            # Or this frame keeps their clients alive during the next wait.
            del questions, settled


def _is_settled(question: LivenessCheck) -> bool:
    try:
        return question.tick()
    except Exception:  # no signal handler runs in this thread
        logger.exception("internal error in pymongo-resilience %s", DOING)
        return True


watcher = Watcher()
"""The process's."""


def would_be_retried(runtime: Runtime, attempt: RetryLoop) -> bool:
    """Whether the rules would retry the attempt if it was interrupted now. Called in another
    thread or task: a first attempt's deadline counts only if the operation has it."""
    if attempt.state is not None:
        # What the operation's own thread knows, after the failures that it has seen.
        state = replace(attempt.state, reasons=[*attempt.state.reasons])
    else:
        state = _state_of_first_attempt(runtime, attempt)
    if not isinstance(state.strategy, BUILT_IN):
        return False
    failure = Failure(
        error=AutoReconnect(),
        stage=Stage.NOT_SENT if attempt.connection is None else Stage.IN_FLIGHT,
        reason=RetryReason.INTERRUPTED,
        carried_txn_number=attempt.attempts.carries_txn_number(),
    )
    state.count(failure)
    return isinstance(runtime.executor.retry_rules.decide(state, failure), Retry)


def _state_of_first_attempt(runtime: Runtime, attempt: RetryLoop) -> RetryState:
    state, operation = retry_state_of(attempt), attempt.operation
    if timeout := operation.limits.timeout:
        left = timeout - operation.elapsed()
        state.deadline = Deadline.after(runtime.executor.clock, left)
    return state
