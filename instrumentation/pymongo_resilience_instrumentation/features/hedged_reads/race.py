"""A read's two tries, and which of them the caller gets: the first answer.

Each try is a run of the driver's method by a worker of its own, with a copy of the operation. The
first has the retry rules of any read, and its error is the read's. The second is one attempt, on
another server, and nothing repeats it or waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from pymongo_resilience.events import ReadHedged
from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation.operation import CURRENT, Operation
from pymongo_resilience_instrumentation.retries.retry_loop import LoopHooks, RetryLoop
from pymongo_resilience_instrumentation.runtime import Runtime

from .hedge_registry import ClientHedges

FIRST, HEDGE = "first", "hedge"


class Read(Protocol):
    """What is read, maybe twice."""

    def send(self, tried: Try, /) -> Any:
        """The result, in async clients an awaitable."""

    def adopt(self, tried: Try, /) -> None:
        """What it ends with is the caller's."""

    def discard(self, tried: Try, /) -> Callable[[], Any] | None:
        """It is over, and its result, if it has one, is not the caller's. Returns what is to be
        called for it, in async clients awaited."""


class Try(LoopHooks):
    """One of the two. Belongs to its worker; how it ended is the race's."""

    def __init__(self, race: Race, name: str, outer: Operation) -> None:
        self.name = name
        self.result: Any = None
        self.error: BaseException | None = None
        self.begun = self.failed = self.over = False
        self.server: str | None = None
        """``"host:port"`` of the last one, once it is over."""
        self.loop: Any = None
        """The driver's retry loop, while it runs."""
        self.operation = outer.another_try(self)
        self._race: Race | None = race

    def begin(self, loop: RetryLoop) -> None:
        self.loop = loop
        if self.name == HEDGE and self._race is not None:
            loop.attempts.deprioritize(self._race.slow_server)

    def gives_up(self, loop: RetryLoop, error: Exception) -> bool:
        """The second try is not repeated."""
        if self.name == FIRST:
            self.failed = True
            return False
        with contain_internal_errors("after a hedged read"):
            # That server failed, whichever answers first: breakers and budgets count it.
            state = loop.retry_state()
            loop.report(loop.classify(error, state), state)
        return True

    def leave(self) -> None:
        """Its operation is over; a command that was interrupted ends with it."""
        operation, race = self.operation, self._race
        if (shown := operation.shown) is not None:
            for sent in [*shown.commands.values()]:
                with contain_internal_errors("after a hedged read"):
                    sent.end(shown, error=self.error)
        # The two would keep each other alive, with all that the read needed, and the error both.
        operation.leave_try()
        if race is not None:
            race.forget(self)
        if self.name == HEDGE or (self._race is not None and self._race.ended):
            self.error = None
        self._race = self.loop = None


class Race:
    """Coordinates the two tries of one read. Its lock is held for some comparisons."""

    def __init__(
        self,
        runtime: Runtime,
        hedges: ClientHedges,
        operation: Operation,
        read: Read,
        workers: Any,
        *,
        delay: float,
    ) -> None:
        """``workers``: ThreadWorkers or TaskWorkers; ``delay``: seconds to the first hedge."""
        self.slow = ""
        """The server of the first try, ``"host:port"``, once the read is hedged."""
        self.slow_server: Any = None
        """The same, the driver's."""
        self._runtime = runtime
        self._hedges = hedges
        self._operation = operation
        self._namespace = operation.namespace
        self._read = read
        self._workers = workers
        self._lock = threading.Lock()
        self._decided: Any = workers.new_signal()
        self.ended = False
        """The caller waits no more."""
        self._winner: Try | None = None
        self._began = time.perf_counter()
        self._waited = 0.0
        self._delay, self._unanswered = delay, 0.0
        self._first = Try(self, FIRST, operation)
        self._second: Try | None = None

    def run(self) -> Any:
        """The caller's part. Raises the first try's error where that ends with one before the
        second has an answer."""
        if not self._workers.start(partial(self._try, self._first)):
            self._read.adopt(self._first)
            return self._read.send(self._first)
        seconds: float | None = self._delay
        try:
            while not self._decided.wait(seconds):
                seconds = self._look()
            return self._settle()
        except BaseException:
            self._abandon()
            raise

    def _try(self, tried: Try) -> Any:
        """A worker's part."""
        try:
            CURRENT.set(tried.operation)
            try:
                tried.result = self._read.send(tried)
            except BaseException as error:  # noqa: BLE001 - the caller's, or ignored
                tried.error = error
            if self._finish(tried):
                self._discard(tried)
        finally:
            tried.leave()

    def _discard(self, tried: Try) -> Any:
        with contain_internal_errors("after a hedged read"):
            discard = self._read.discard(tried)
            if discard is not None:
                discard()

    def _look(self) -> float | None:
        """The read stays unanswered: hedge it. Returns the seconds to wait until it may be hedged,
        after twice the delay, four times, and so on; None where nothing is left to do."""
        if self._hedge(again=self._unanswered > 0):
            return None
        self._unanswered += self._unanswered or self._delay
        return self._unanswered

    def _finish(self, tried: Try) -> bool:
        """Whether what it ended with is not the caller's.

        The first try decides however it ends, the second only with an answer.
        """
        if tried is self._first and tried.error is None:
            self._hedges.observe(self._namespace, time.perf_counter() - self._began)
        with self._lock:
            if tried.loop is not None:
                tried.server = tried.loop.attempts.server_address()
            tried.over = True
            if not self.ended and self._winner is None and tried.error is None:
                self._winner = tried
            if self._winner is not None or self._first.over:
                self._decided.set()
            return self._winner is not tried

    def _hedge(self, *, again: bool) -> bool:
        """Begin the second try, unless the first is being repeated already. False where none is
        allowed now, or has no server to go to: later there may be one."""
        if self._first.failed:
            return True
        if not self._hedges.budget.take(again=again):
            return False
        begun = False
        try:
            with contain_internal_errors("before a read was hedged"):
                begun = self._begin_second()
        finally:
            if not begun:
                self._hedges.budget.give_back()
        return begun

    def _begin_second(self) -> bool:
        loop = self._first.loop
        slow = None if loop is None else loop.attempts.server_address()
        if slow is None or self._first.over:
            return False
        if not self._hedges.may_go_elsewhere(loop.attempts, slow):
            return False
        self.slow, self.slow_server = slow, loop.server
        self._waited = time.perf_counter() - self._began
        second = self._second = Try(self, HEDGE, self._operation)
        # Two commands, so each has a span of its own.
        for tried in (self._first, second):
            if tried.operation.shown is not None:
                tried.operation.shown.show_each_command()
        second.begun = self._workers.start(partial(self._try, second))
        return second.begun

    def _settle(self) -> Any:
        with self._lock:
            self.ended = True
            winner, error, self._first.error = self._winner, self._first.error, None
            self._operation.adopt((self._first if winner is None else winner).operation)
            self._forget_outcomes()
        self._publish(winner)
        try:
            if winner is not None:
                self._read.adopt(winner)
                return winner.result
            raise error  # type: ignore[misc]  # it has one: it is over without a result
        finally:
            # The frames that it passed hold the race.
            del error

    def _abandon(self) -> None:
        """The caller waits no more: the answer is ignored."""
        with self._lock:
            published, self.ended = self.ended, True
            winner, self._winner = self._winner, None
            self._forget_outcomes()
        if not published:
            self._publish(None)
        self._workers.cancel()
        if winner is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._workers.start(partial(self._discard, winner))

    def _forget_outcomes(self) -> None:
        """Of the tries that are over; the lock is held."""
        for tried in (self._first, self._second):
            if tried is not None and tried.over:
                tried.operation.forget_outcome()

    def forget(self, tried: Try) -> None:
        """Called by a worker once its try is over, before or after the caller has its answer."""
        with self._lock:
            if self.ended:
                tried.operation.forget_outcome()

    def _publish(self, winner: Try | None) -> None:
        second = self._second
        if second is None or not second.begun:
            return
        with contain_internal_errors("after a hedged read"):
            if winner is second:
                self._hedges.won += 1
            server = second.server
            if server is None and second.loop is not None:
                server = second.loop.attempts.server_address()
            name = None if winner is None else winner.name
            event = ReadHedged(
                self._operation.name, self._namespace, self.slow, server, self._waited, name
            )
            self._runtime.executor.listener.on_event(event)


class AsyncRace(Race):
    """The same in tasks."""

    async def run(self) -> Any:
        self._workers.start(partial(self._try, self._first))
        seconds: float | None = self._delay
        try:
            while not await self._decided.wait(seconds):
                seconds = self._look()
            return self._settle()
        except BaseException:
            self._abandon()
            raise

    async def _try(self, tried: Try) -> None:
        try:
            CURRENT.set(tried.operation)
            try:
                tried.result = await self._read.send(tried)
            except BaseException as error:  # noqa: BLE001 - the caller's, or ignored
                tried.error = error
            unused = self._finish(tried)
            if isinstance(tried.error, GeneratorExit):
                raise tried.error
            if unused:
                await self._discard(tried)
        finally:
            tried.leave()

    async def _discard(self, tried: Try) -> Any:
        with contain_internal_errors("after a hedged read"):
            discard = self._read.discard(tried)
            if discard is not None:
                await discard()
