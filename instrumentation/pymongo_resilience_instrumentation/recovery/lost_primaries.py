"""Attempts that wait for a member which is no longer the primary and does not answer.

They are interrupted where they would be repeated; the others go on waiting.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import AutoReconnect

from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience.options.config import INTERRUPTIONS
from pymongo_resilience.rules.failure import Failure, RetryReason, Stage
from pymongo_resilience.rules.operation_deadline import Deadline
from pymongo_resilience.rules.retried_operation import Kind, Operation
from pymongo_resilience.rules.retry_rules import NeedsStrategy, Retry
from pymongo_resilience.rules.strategy import NAMED
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.failures.connection_errors import InterruptedAttemptError
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor
from pymongo_resilience_instrumentation.interception.steps import run, run_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.driver.servers.attempts_in_flight import InFlight
    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.interception.steps import Steps
    from pymongo_resilience_instrumentation.runtime import Runtime

GRACE = 0.2
"""Seconds in which a member that is no longer the primary may still answer."""
EMPTY = 2
"""Looks that may find no attempt: one may have selected the member, and still be connecting."""
LOOKS = 10
"""After which one that neither answers nor is silent is left alone."""
BUILT_IN = tuple(type(each) for each in NAMED.values())
"""Another strategy is the application's, and is asked about failures that happened only."""


def wrapped(runtime: Runtime) -> Iterator[Wrapped]:
    """What to wrap of topologies, and with what."""
    if INTERRUPTIONS not in runtime.config.disabled_recovery:
        for owner, asynchronous in driver.topologies.topologies():
            yield owner, driver.topologies.CHANGE, Change(runtime, asynchronous)


class Change(Interceptor):
    """A topology takes note of a server's new description."""

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        self._runtime = runtime
        self._start = _start_task if asynchronous else _start_thread

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        return Entered(given[0])

    def succeeded(self, entered: Entered, result: Any) -> Any:
        with suppress(Exception):  # under the driver's lock nothing is logged
            address = driver.topologies.former_primary(entered.instance)
            if address is not None:
                self._start(FormerPrimary(self._runtime, entered.instance, address))
        return result


class FormerPrimary:
    """One member that ceased to be the primary. Belongs to one thread or task."""

    def __init__(self, runtime: Runtime, topology: Any, address: Address) -> None:
        self._runtime = runtime
        self._topology = topology
        self._address = address
        self._since = time.monotonic()
        self._asked = False
        self._empty = 0

    def pool(self) -> Any:
        """None once there is nothing to do here."""
        if not self._runtime.enabled_flag.on:
            return None
        return driver.topologies.pool_at(self._topology, self._address)

    def to_interrupt(self, found: list[InFlight]) -> list[InFlight] | None:
        """Of the attempts on the member, GRACE after it ceased to be the primary. Empty: none yet,
        look again after GRACE. None: none at all."""
        silent = [
            each
            for each in found
            if driver.connections.nothing_arrived_for(each.connection, GRACE)
            and would_be_repeated(self._runtime, each.loop)
        ]
        self._empty += not found
        if not silent:
            return [] if self._empty <= EMPTY else None
        if driver.topologies.last_reply_at(self._topology, self._address) < self._since:
            return silent if not self._asked or self._is_silent() else []
        if self._asked:
            return None
        # It answers, or did when it said so itself: is that still so?
        self._asked, self._since = True, time.monotonic()
        driver.topologies.check(self._topology, self._address)
        return []

    @property
    def server(self) -> str:
        return address_text(self._address)

    @property
    def pauses(self) -> bool:
        """A server that the client knows may be selected, and its pool be needed."""
        return not driver.topologies.is_known(self._topology, self._address)

    def _is_silent(self) -> bool:
        check = driver.checks.check_in_progress(self._topology, self._address)
        return check is not None and check.seconds >= GRACE


def _end(chosen: list[InFlight], server: str) -> None:
    logger.info("%d attempts interrupted on %s: no longer the primary", len(chosen), server)
    for each in chosen:
        driver.connections.end(each.connection, InterruptedAttemptError())


def _watch(lost: FormerPrimary, sleep: Any, attempts: Any, interrupt: Any) -> Steps:
    with shielded("after an election"):
        for _ in range(LOOKS):
            yield partial(sleep, GRACE)
            pool = lost.pool()
            chosen = None if pool is None else lost.to_interrupt(attempts(pool))
            if chosen is None:
                return
            if chosen:
                connections = [each.connection for each in chosen]
                yield partial(interrupt, pool, connections, pause=lost.pauses)
                _end(chosen, lost.server)


def _start_thread(lost: FormerPrimary) -> None:
    found = driver.attempts_in_flight
    watch = _watch(lost, time.sleep, found.in_threads, found.interrupt)
    name = "pymongo_resilience_recovery"
    threading.Thread(target=run, args=(watch,), name=name, daemon=True).start()


_TASKS: set[asyncio.Task[None]] = set()
"""A loop keeps its tasks weakly."""


def _start_task(lost: FormerPrimary) -> None:
    found = driver.attempts_in_flight
    watch = _watch(lost, asyncio.sleep, found.in_tasks, found.interrupt_async)
    task = asyncio.get_running_loop().create_task(run_async(watch))
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)


def would_be_repeated(runtime: Runtime, loop: Any) -> bool:
    """Whether the rules would repeat the attempt that the loop is making, were it interrupted now.
    In another thread or task: what only its own context says counts as no."""
    call = getattr(loop, "call", None)
    if call is None or call.ended:
        return False
    rules, executor = runtime.rules, runtime.executor
    said = call.within.over(call.bound).over(rules.policy_of(*call.governed))
    strategy = rules.strategy if said.strategy is None else said.strategy
    if not isinstance(strategy, BUILT_IN):
        return False
    kind = Kind.READ if loop.only_reads else driver.retry_loop.kind(loop)
    left = None if not call.timeout else call.timeout - call.elapsed()
    operation = Operation(
        name=call.operation,
        namespace=call.namespace,
        kind=kind,
        strategy=strategy,
        retries_enabled=driver.retry_loop.retries_enabled(loop, kind),
        in_transaction=driver.retry_loop.in_transaction(loop),
        acknowledged=call.acknowledged,
        declared_idempotent=bool(said.idempotent),
        deadline=None if left is None else Deadline.after(executor.clock, left),
        attempts=len(call.reasons),
    )
    failure = Failure(
        error=AutoReconnect(),
        stage=Stage.IN_FLIGHT if loop.reached_connection else Stage.NOT_SENT,
        reason=RetryReason.INTERRUPTED,
        carried_txn_number=driver.retry_loop.carries_txn_number(loop),
    )
    operation.record(failure)
    verdict = executor.retry_rules.check_rules(operation, failure)
    if isinstance(verdict, NeedsStrategy):
        answer: Any = strategy.retry_after(operation, failure)
        verdict = executor.retry_rules.apply_strategy(operation, failure, answer)
    return isinstance(verdict, Retry)
