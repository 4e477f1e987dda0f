"""Plans: operations in blocks of ``override`` that nest, one after the other on one clock.

Everything may take its time: the attempts, and whoever is asked or told between two of them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeVar

from support.engine.engine_inputs import Whimsical
from support.engine.failing_work import AwaitedWork, BlockingWork, FakeWork, Final
from support.engine.fake_clock import FakeClock

from pymongo_resilience.events import RetryDeclined
from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import override
from pymongo_resilience.policies.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from support.engine.failing_work import Call, Fault

    from pymongo_resilience.events import Event
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retried_operation import Operation
    from pymongo_resilience.rules.retry_rules import RetryRules, Rule
    from pymongo_resilience.rules.strategy import RetryStrategy


@dataclass(frozen=True)
class Slowness:
    """Seconds that each of them takes between two attempts."""

    strategy: float = 0.0
    listener: float = 0.0
    leave: float = 0.0
    prepare: float = 0.0


@dataclass(frozen=True)
class Step:
    """One operation, whose every attempt fails."""

    call: Call
    faults: tuple[Fault, ...]
    """Over and over: nothing but the engine can end this."""
    strategy: RetryStrategy
    retry_rules: RetryRules
    bound_ms: int | None
    """The timeout of the collection it is called on."""
    slowness: Slowness


@dataclass(frozen=True)
class Block:
    """What happens in a block of ``override``; a number is seconds that pass."""

    timeout_ms: int | None
    steps: tuple[Step | Block | float, ...]


@dataclass(frozen=True)
class Plan:
    start: float
    """Of the clock."""
    window: float
    """Seconds in which is repeated what has a timeout of 0."""
    block: Block


@dataclass
class Ran:
    """One operation of a plan: what it should have had, and what it did when."""

    step: Step
    timeout_ms: int | None
    """Worked out from the blocks around it, without the engine."""
    began: float
    attempts: list[float] = field(default_factory=list)
    """When each began."""
    first_failure: float = 0.0
    waits: list[float] = field(default_factory=list)
    """When each ended."""
    declined_at: float = 0.0
    rule: Rule | None = None

    @property
    def last_fault(self) -> Fault:
        return self.step.faults[(len(self.attempts) - 1) % len(self.step.faults)]


def shortest(around: list[int | None], bound_ms: int | None) -> int | None:
    """Which timeout holds, in other words than the engine's."""
    said = [each for each in around if each is not None]
    finite = sorted(each for each in said if each > 0)
    if finite:
        return finite[0]
    return 0 if said else bound_ms


class WatchedClock(FakeClock):
    """Tells the operation that waits when its wait has ended."""

    ran: Ran

    def sleep(self, seconds: float, /) -> None:
        super().sleep(seconds)
        self.ran.waits.append(self.now())


class _Watched(FakeWork):
    ran: Ran

    def _attempt(self) -> str:
        self.ran.attempts.append(self.clock.now())
        return super()._attempt()

    def operation(self) -> Operation:
        self.ran.first_failure = self.clock.now()
        return super().operation()

    def prepare(self, failure: Failure, operation: Operation, /) -> None:
        self.clock.advance(self.ran.step.slowness.prepare)


class _WatchedBlockingWork(_Watched, BlockingWork):
    def report(self, failure: Failure, operation: Operation, /) -> None:
        self.clock.advance(self.ran.step.slowness.leave)


class _WatchedAwaitedWork(_Watched, AwaitedWork):
    def report(self, failure: Failure, operation: Operation, /) -> Callable[[], Awaitable[None]]:
        async def release() -> None:
            self.clock.advance(self.ran.step.slowness.leave)

        return release


class _InNoHurry:
    """A strategy that thinks, and a listener that takes down."""

    def __init__(self, clock: FakeClock, ran: Ran) -> None:
        strategy = ran.step.strategy
        self._clock = clock
        self._ran = ran
        self._strategy = strategy.anew() if isinstance(strategy, Whimsical) else strategy

    def retry_after(self, operation: Operation, failure: Failure, /) -> Any:
        self._clock.advance(self._ran.step.slowness.strategy)
        return self._strategy.retry_after(operation, failure)

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, RetryDeclined):
            self._ran.declined_at, self._ran.rule = self._clock.now(), event.rule
        self._clock.advance(self._ran.step.slowness.listener)


class _InNoHurryAtAll(_InNoHurry):
    """The strategy is a coroutine."""

    async def retry_after(self, operation: Operation, failure: Failure, /) -> Any:
        return super().retry_after(operation, failure)


def _begun(
    clock: WatchedClock, block: Block, around: list[int | None]
) -> Iterator[tuple[Ran, Policy]]:
    """Each operation of the plan, and what the blocks say that it is planned in."""
    around = [*around, block.timeout_ms]
    with override(timeout_ms=block.timeout_ms):
        for step in block.steps:
            if isinstance(step, Block):
                yield from _begun(clock, step, around)
            elif isinstance(step, Step):
                ran = Ran(step, shortest(around, step.bound_ms), clock.now())
                clock.ran = ran
                yield ran, blocks.current()
            else:
                clock.advance(step)


W = TypeVar("W", bound=_Watched)


def _work(
    kind: type[W], plan: Plan, clock: WatchedClock, begun: tuple[Ran, Policy], strategy: Any
) -> W:
    ran, said = begun
    step = ran.step
    # As the other half resolves it.
    timeout_ms = said.over(Policy(timeout_ms=step.bound_ms)).timeout_ms
    work = kind(
        step.call,
        cycle(step.faults),
        strategy,
        clock,
        timeout=timeout_ms / 1000 if timeout_ms else None,
        window=plan.window if timeout_ms == 0 else None,
    )
    work.ran = ran
    return work


def in_thread(plan: Plan) -> list[Ran]:
    clock, all_ran = WatchedClock(plan.start), []
    for ran, said in _begun(clock, plan.block, []):
        slow = _InNoHurry(clock, ran)
        work = _work(_WatchedBlockingWork, plan, clock, (ran, said), slow)
        with contextlib.suppress(Final):
            work.run(Executor(ran.step.retry_rules, clock, slow))
        all_ran.append(ran)
    return all_ran


async def in_task(plan: Plan) -> list[Ran]:
    clock, all_ran = WatchedClock(plan.start), []
    for ran, said in _begun(clock, plan.block, []):
        slow = _InNoHurryAtAll(clock, ran)
        work = _work(_WatchedAwaitedWork, plan, clock, (ran, said), slow)
        with contextlib.suppress(Final):
            await work.run(AsyncExecutor(ran.step.retry_rules, clock, slow))
        all_ran.append(ran)
    return all_ran
