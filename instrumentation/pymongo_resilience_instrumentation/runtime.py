"""What one ``instrument()`` set up: executors, spans and metrics, and how a call passes them."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pymongo

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.attempts import Attempts
from pymongo_resilience_instrumentation.listeners import OurListener, listeners_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pymongo_resilience.config import Config
    from pymongo_resilience.events import Event
    from pymongo_resilience.executor import AsyncExecutor, Executor
    from pymongo_resilience.strategy import RetryStrategy
    from pymongo_resilience.switch import Switch
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.clients import Clients
    from pymongo_resilience_instrumentation.command_spans import CommandSpans
    from pymongo_resilience_instrumentation.metrics import OperationMetrics
    from pymongo_resilience_instrumentation.spans import OperationSpans

logger = logging.getLogger("pymongo_resilience")

NO_DEADLINE: AbstractContextManager[None] = nullcontext()


class CallLog:
    """Listener: gathers the decisions on the call in progress."""

    def on_event(self, event: Event, /) -> None:
        call = calls.current()
        if call is None:
            return
        if isinstance(event, RetryScheduled):
            call.reasons.append(event.reason)
            call.backoff += event.delay
        else:
            call.declined_by = event.rule


def _can_have_sdam_listeners(client: Any) -> bool:
    """With them, an async client starts a task in its constructor: it then needs a running loop,
    which it does not need otherwise, and must not need because of us."""
    if not isinstance(client, pymongo.AsyncMongoClient):
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Runtime:
    """Immutable, so thread- and task-safe; what changes is on the call."""

    config: Config
    strategy: RetryStrategy
    executor: Executor
    async_executor: AsyncExecutor
    clients: Clients
    switch: Switch
    operation_spans: OperationSpans | None
    command_spans: CommandSpans | None
    operation_metrics: OperationMetrics | None
    knows_timeouts: bool
    """Whether the driver says which timeout is in force; without that we set none."""

    def attempts(self, loop: Any) -> Attempts:
        """The work of one run of the driver's loop."""
        return Attempts(
            loop,
            clock=self.executor.clock,
            strategy=self.strategy,
            retargeting=self.config.overload_retargeting,
        )

    def begin(
        self, client: Any, operation: str, database: str, collection: str | None, acknowledged: bool
    ) -> Call:
        """Enter a call of the public API."""
        call = calls.Call(operation, database, collection, acknowledged=acknowledged)
        call.started = time.perf_counter()
        call.timeout, call.deadline = self.deadline(client)
        calls.enter(call)
        if self.operation_spans is not None:
            self.operation_spans.start(call)
        return call

    def end(self, call: Call, error: BaseException | None) -> None:
        """Leave it: the span ends, the duration is recorded, whatever happened."""
        try:
            if self.operation_metrics is not None:
                elapsed = time.perf_counter() - call.started
                self.operation_metrics.record(call, error, elapsed)
        except Exception:
            logger.exception("a fault of pymongo-resilience while recording %s", call.operation)
        try:
            if self.operation_spans is not None:
                self.operation_spans.end(call, error)
        except Exception:
            logger.exception("a fault of pymongo-resilience while ending %s", call.operation)
        calls.leave(call)

    def deadline(self, client: Any) -> tuple[float | None, AbstractContextManager[None]]:
        """The seconds a call has, and what puts the configured default in force.

        ``pymongo.timeout`` around the call wins, then the client's own timeoutMS.
        """
        own: float | None = client.options.timeout
        if not self.knows_timeouts:
            return own, NO_DEADLINE
        in_force = driver.timeout_in_force()
        if in_force is not None:
            return in_force, NO_DEADLINE
        default = self.config.timeout_ms
        if own is not None or default is None:
            return own, NO_DEADLINE
        return default / 1000, pymongo.timeout(default / 1000)

    def deadline_of(self, loop: Any) -> AbstractContextManager[None]:
        """The same for a loop that was entered without a wrapper of ours around the call."""
        if calls.current() is not None:
            return NO_DEADLINE
        return self.deadline(driver.client(loop))[1]

    def equip(self, client: Any, listeners: Sequence[Any]) -> list[Any]:
        """The listeners of a client that is being made: its own, and ours once."""
        own = [each for each in listeners if not isinstance(each, OurListener)]
        state = self.clients.add()
        sdam = _can_have_sdam_listeners(client)
        if not sdam:
            state.follow(client)
        metrics = self.operation_metrics is not None
        return own + listeners_of(
            state, self.command_spans, self.switch, metrics=metrics, sdam=sdam
        )
