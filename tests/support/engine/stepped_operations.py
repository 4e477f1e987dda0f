"""Operations of one client, each at a stop of its own: whoever drives them chooses the next step.

The executor is the real one, and its coroutine is stepped manually: it stops at every attempt and
at every wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.engine.failing_work import RESULT, AttemptFailed, FakeWork, Final
from support.engine.fake_clock import FakeClock

from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.executor import AsyncExecutor
from pymongo_resilience.testing import RecordingListener

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from support.engine.failing_work import Fault

    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retry_rules import RetryRules


class Stop:
    """Awaited: stops the coroutine until it is sent something, and that is the result."""

    def __await__(self) -> Generator[None, Fault | None, Fault | None]:
        return (yield)


class SharedClock(FakeClock):
    """Time passes while somebody waits, for all; the driver turns it."""

    async def sleep_async(self, seconds: float, /) -> None:
        self.sleeps.append(seconds)
        await Stop()


class SteppedWork(FakeWork):
    """Fails with what it is sent; sent None, it succeeds."""

    async def attempt(self) -> str:
        self.attempts += 1
        self._fault = await Stop()
        if self._fault is None:
            return RESULT
        raise AttemptFailed(self.attempts)

    def release_attempt(self, failure: Failure, /) -> None:
        self.left.append(failure)


@dataclass
class Running:
    """One operation on its way: in an attempt, waiting for the next, or ended."""

    retry_rules: RetryRules
    work: SteppedWork
    heard: RecordingListener = field(default_factory=RecordingListener)
    wakes_at: float | None = None
    """While it waits."""
    ended: bool = False

    def __post_init__(self) -> None:
        executor = AsyncExecutor(self.retry_rules, self.work.clock, self.heard)
        self._coroutine: Coroutine[None, Fault | None, str] = executor.run(self.work)
        self._step(None)

    @property
    def decision(self) -> RetryScheduled | RetryDeclined:
        """The latest."""
        return self.heard.events[-1]

    def fail(self, fault: Fault) -> None:
        """The attempt fails; what is decided is ``decision``."""
        self.work.clock.advance(fault.takes)
        self._step(fault)
        delay = self.decision.delay if isinstance(self.decision, RetryScheduled) else 0
        self.wakes_at = self.work.clock.now() + delay if delay else None

    def succeed(self) -> None:
        self._step(None)

    def wake(self) -> None:
        """The wait is over, and the next attempt begins."""
        assert self.wakes_at is not None
        self.work.clock.advance(max(0.0, self.wakes_at - self.work.clock.now()))
        self.wakes_at = None
        self._step(None)

    def abandon(self) -> None:
        self._coroutine.close()

    def _step(self, sent: Fault | None) -> None:
        try:
            self._coroutine.send(sent)
        except (StopIteration, Final):
            self.ended = True
