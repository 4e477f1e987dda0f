"""The two tries of a hedged read. The caller gets the first answer.

Each try runs pymongo's method in its own worker, with a copy of the operation. The first try
follows the retry rules of any read, and its error is the read's error. The second try is a single
attempt on another server; nobody retries it or waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pymongo_resilience.events import ReadHedged
from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation.operation import CURRENT, Operation
from pymongo_resilience_instrumentation.retries.loop_hooks import LoopHooks
from pymongo_resilience_instrumentation.runtime import Runtime

from .hedge_registry import ClientHedges

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.retries.after_failure import Retries

FIRST, HEDGE = "first", "hedge"


class Read(Protocol):
    """A read that may be sent twice."""

    def send(self, tried: Try, /) -> Any:
        """Return the result; for async clients, an awaitable."""

    def adopt(self, tried: Try, /) -> None:
        """Give the outcome of this try to the caller."""

    def discard(self, tried: Try, /) -> Callable[[], Any] | None:
        """Return a function that releases the result of an unused try; for async clients, a
        coroutine function.
        """


class Try(LoopHooks):
    """One of the two tries. Belongs to its worker; its outcome belongs to the race."""

    def __init__(self, race: Race, name: str, outer: Operation) -> None:
        self.name = name
        self.result: Any = None
        self.error: BaseException | None = None
        self.begun = self.failed = self.over = False
        self.server: str | None = None
        """``"host:port"`` of the last attempt, once the try is over."""
        self.attempts: DriverAttempts | None = None
        """The attempts of its retry loop, while it runs."""
        self.operation = outer.another_try(self)
        self._race: Race | None = race

    def begin(self, attempts: DriverAttempts) -> None:
        self.attempts = attempts
        if self.name == HEDGE and self._race is not None:
            attempts.deprioritize(self._race.slow_server)

    def gives_up(self, retries: Retries, error: Exception) -> bool:
        """Return True for the second try, which is not retried."""
        if self.name == FIRST:
            self.failed = True
            return False
        with contain_internal_errors("after a hedged read"):
            # The server failed, whichever try is answered first, so breakers and budgets must count
            # it.
            retries.report(retries.classify(error))
        return True

    def leave(self) -> None:
        """End the try's operation, and with it a command that was interrupted."""
        operation, race = self.operation, self._race
        if (shown := operation.shown) is not None:
            for sent in [*shown.commands.values()]:
                with contain_internal_errors("after a hedged read"):
                    sent.end(shown, error=self.error)
        # The two tries reference each other and the error. Break the cycle, so that nothing is kept
        # alive.
        operation.leave_try()
        if race is not None:
            race.forget(self)
        # Nobody will read the error of the second try, or of a race that has ended.
        if self.name == HEDGE or (self._race is not None and self._race.ended):
            self.error = None
        self._race = self.attempts = None


class Race:
    """Coordinates the two tries of one read. Its lock is held only for comparisons."""

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
        """Create a race.

        Args:
            runtime: The runtime.
            hedges: The client's state.
            operation: The read.
            read: Sends the read.
            workers: ThreadWorkers or TaskWorkers.
            delay: Seconds before the read is hedged.
        """
        self.slow = ""
        """``"host:port"`` of the first try's server, once the read is hedged."""
        self.slow_server: Any = None
        """pymongo's object for that server."""
        self._runtime = runtime
        self._hedges = hedges
        self._operation = operation
        self._namespace = operation.namespace
        self._read = read
        self._workers = workers
        self._lock = threading.Lock()
        self._decided: Any = workers.new_signal()
        self.ended = False
        """True if the caller no longer waits."""
        self._winner: Try | None = None
        self._began = time.perf_counter()
        self._waited = 0.0
        self._delay, self._unanswered = delay, 0.0
        self._first = Try(self, FIRST, operation)
        self._second: Try | None = None

    def run(self) -> Any:
        """Run the race in the caller's thread.

        Raises:
            Exception: The first try's error, unless the second try was answered before.
        """
        if not self._start(self._first):
            # No thread is available, so the caller sends the read itself.
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

    def _start(self, tried: Try) -> bool:
        """Start a worker for one try. Return False if none is available."""
        started: bool = self._workers.start(partial(self._try, tried))
        return started

    def _try(self, tried: Try) -> Any:
        """Run one try, in a worker."""
        try:
            # The worker has a copy of the caller's context, so this does not affect the caller.
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
        """Hedge the read if that is allowed now.

        Returns:
            Seconds to wait before asking again (twice the delay, then four times, and so on), or
            None if there is nothing more to do.
        """
        if self._hedge(again=self._unanswered > 0):
            return None
        self._unanswered += self._unanswered or self._delay
        return self._unanswered

    def _finish(self, tried: Try) -> bool:
        """Record the end of a try. Return True if its outcome is not used.

        The first try decides the race with an answer or an error, the second only with an answer.
        """
        if tried is self._first and tried.error is None:
            self._hedges.observe(self._namespace, time.perf_counter() - self._began)
        with self._lock:
            if tried.attempts is not None:
                tried.server = tried.attempts.server_address()
            tried.over = True
            if not self.ended and self._winner is None and tried.error is None:
                self._winner = tried
            if self._winner is not None or self._first.over:
                self._decided.set()
            return self._winner is not tried

    def _hedge(self, *, again: bool) -> bool:
        """Start the second try, unless the first is already being retried.

        Return False if no hedge is allowed now, or if no other server is available; both may
        change.
        """
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
        attempts = self._first.attempts
        slow = None if attempts is None else attempts.server_address()
        if attempts is None or slow is None or self._first.over:
            return False
        if not self._hedges.may_go_elsewhere(attempts, slow):
            return False
        self.slow, self.slow_server = slow, attempts.server
        self._waited = time.perf_counter() - self._began
        second = self._second = Try(self, HEDGE, self._operation)
        # The read now consists of two commands, so each gets its own span.
        for tried in (self._first, second):
            if tried.operation.shown is not None:
                tried.operation.shown.show_each_command()
        second.begun = self._start(second)
        if not second.begun:
            second.leave()
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
            # The frames that the error passed through reference the race. Break the cycle.
            del error

    def _abandon(self) -> None:
        """End the race because the caller no longer waits. The answer is ignored."""
        with self._lock:
            published, self.ended = self.ended, True
            winner, self._winner = self._winner, None
            self._forget_outcomes()
        if not published:
            self._publish(None)
        self._workers.cancel()
        if winner is not None:
            # The event loop may be closed.
            with suppress(RuntimeError):
                self._workers.start(partial(self._discard, winner))

    def _forget_outcomes(self) -> None:
        """Forget the outcomes of finished tries. The lock is held."""
        for tried in (self._first, self._second):
            if tried is not None and tried.over:
                tried.operation.forget_outcome()

    def forget(self, tried: Try) -> None:
        """Called by a worker when its try is over, before or after the caller has the answer."""
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
            if server is None and second.attempts is not None:
                server = second.attempts.server_address()
            name = None if winner is None else winner.name
            event = ReadHedged(
                self._operation.name, self._namespace, self.slow, server, self._waited, name
            )
            self._runtime.executor.listener.on_event(event)


class AsyncRace(Race):
    """As ``Race``, in tasks."""

    async def run(self) -> Any:
        self._start(self._first)
        seconds: float | None = self._delay
        try:
            while not await self._decided.wait(seconds):
                seconds = self._look()
            return self._settle()
        except BaseException:
            self._abandon()
            raise

    def _start(self, tried: Try) -> bool:
        task: asyncio.Task[object] = self._workers.start(partial(self._try, tried))
        # A task that is canceled before its first step runs nothing of _try, not even its end.
        task.add_done_callback(lambda _: tried.leave())
        return True

    async def _try(self, tried: Try) -> None:
        try:
            CURRENT.set(tried.operation)
            try:
                tried.result = await self._read.send(tried)
            except BaseException as error:  # noqa: BLE001 - the caller's, or ignored
                tried.error = error
            unused = self._finish(tried)
            # The coroutine is being closed, so nothing more may be awaited.
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
