"""Work for the executors that fails as it is told, on a clock advanced manually."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from support.engine.fake_clock import FakeClock

from pymongo_resilience.clock import Deadline
from pymongo_resilience.events import RetryDeclined, RetryScheduled
from pymongo_resilience.executor import AsyncExecutor, Executor
from pymongo_resilience.rules.budget import UNLIMITED, RetryBudget
from pymongo_resilience.rules.failure import TRANSIENT_TRANSACTION, Failure, RetryReason, Stage
from pymongo_resilience.rules.outcome import Outcome
from pymongo_resilience.rules.retry_rules import Retry
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.testing import RecordingListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from pymongo_resilience.events import Event
    from pymongo_resilience.rules.retry_rules import RetryRules, Rule
    from pymongo_resilience.rules.strategy import RetryStrategy

RESULT = "the result"
START = 128.0
"""Not zero, so that a point in time cannot pass for a duration."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One failing attempt: what the facts will say, and how long it takes to fail."""

    reason: RetryReason
    stage: Stage = Stage.ANSWERED
    labels: frozenset[str] = frozenset()
    base_backoff: float | None = None
    retry_after: float | None = None
    min_rtt: float = 0.0
    selection: bool = False
    timed_out: bool = False
    server_answered: bool = False
    application_limit_ms: int | None = None
    listed_retryable: bool = True
    next_probe_in: float | None = None
    elsewhere: bool = False
    pymongo_retries_after: float | None = None
    """Seconds for which the driver alone might still wait for the server."""
    router_lost: bool = False
    server: str | None = None
    """None is another server for each attempt."""
    takes: float = 0.0
    next_command: bool = False
    """A bulk whose earlier command went through meanwhile."""

    def __call__(self, **changes: Any) -> Fault:
        """The same fault, but for ``changes``."""
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What the application called, as the rules see it."""

    kind: Kind
    txn_number: bool = False
    """It goes out as a retryable write."""
    in_transaction: bool = False
    acknowledged: bool = True
    idempotent: bool = False
    retries_enabled: bool = True
    once: bool = False

    def __call__(self, **changes: Any) -> Call:
        """The same call, but for ``changes``."""
        return replace(self, **changes)


class AttemptFailed(Exception):  # noqa: N818 - it stands in for an error of the driver
    """An attempt's error, before anyone judged it."""


class Final(Exception):  # noqa: N818 - it stands in for an error of the driver
    """What the work hands to the application."""

    def __init__(self, failure: Failure, rule: Rule) -> None:
        super().__init__(rule.value)
        self.failure = failure
        self.rule = rule


class Runaway(BaseException):
    """The engine did not stop; not an Exception, so that nothing can retry it."""


@dataclass
class FakeWork:
    """Fails as ``faults`` say, in order, then succeeds. For one thread or task."""

    call: Call
    faults: Iterable[Fault]
    strategy: RetryStrategy
    clock: FakeClock = field(default_factory=lambda: FakeClock(START))
    timeout: float | None = None
    window: float | None = None
    attempts: int = 0
    patience: int = 10_000
    own_max_retries: int | None = None
    budget: RetryBudget = UNLIMITED
    left: list[Failure] = field(default_factory=list)
    planned: list[Failure] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self._to_come: Iterator[Fault] = iter(self.faults)
        self._fault: Fault | None = None
        self._deadline = self._after(self.timeout)

    def _after(self, seconds: float | None) -> Deadline | None:
        return None if seconds is None else Deadline.after(self.clock, seconds)

    def _attempt(self) -> str:
        self.attempts += 1
        if self.attempts > self.patience:
            raise Runaway
        self._fault = next(self._to_come, None)
        if self._fault is None:
            return RESULT
        self.clock.advance(self._fault.takes)
        raise AttemptFailed(self.attempts)

    @cached_property
    def state(self) -> RetryState:
        """Made at the first failure."""
        return RetryState(
            "find",
            "shop.orders",
            self.call.kind,
            self.strategy,
            retries_enabled=self.call.retries_enabled,
            in_transaction=self.call.in_transaction,
            acknowledged=self.call.acknowledged,
            declared_idempotent=self.call.idempotent,
            deadline=self._deadline,
            retry_window=self._after(self.window),
            max_retries=self.own_max_retries,
            budget=self.budget,
            once=self.call.once,
        )

    def classify(self, error: Exception, /) -> Failure:
        fault = self._fault
        assert fault is not None
        if fault.next_command:
            if self.state.attempts:
                self.budget.succeeded(retried=True)
            self.state.next_command()
        failure = failure_of(
            fault, self.call, error, server=fault.server or f"host{self.attempts}:27017"
        )
        return replace(failure, unhurried_until=self._after(fault.pymongo_retries_after))

    def _report(self, failure: Failure) -> None:
        self.left.append(failure)
        self.budget.failed(failure, retried=self.state.attempts > 0)

    def plan(self, failure: Failure, retry: Retry, /) -> None:
        self.planned.append(failure)

    def final_error(self, failure: Failure, rule: Rule, /) -> Exception:
        return Final(failure, rule)

    def failed_before_sending(self, error: Exception, /) -> bool:
        return False


class BlockingWork(FakeWork):
    def again(self, plan: None = None, /) -> str:
        return self._attempt()

    def report(self, failure: Failure, /) -> None:
        self._report(failure)

    def run(self, executor: Executor) -> Any:
        """As the driver's loop does it: the first attempt is not the executor's."""
        try:
            result = self.again()
        except Exception as error:  # noqa: BLE001 - the rules decide
            failed = error
        else:
            self.budget.succeeded(retried=False)
            return result
        return executor.run(self, failed)


class AwaitedWork(FakeWork):
    async def again(self, plan: None = None, /) -> str:
        await asyncio.sleep(0)  # the loop gets its turn, as with a real connection
        return self._attempt()

    def report(self, failure: Failure, /) -> Callable[[], Awaitable[None]]:
        async def release() -> None:
            await asyncio.sleep(0)
            self.left.append(failure)

        self.budget.failed(failure, retried=self.state.attempts > 0)
        return release

    async def run(self, executor: AsyncExecutor) -> Any:
        try:
            result = await self.again()
        except Exception as error:  # noqa: BLE001 - the rules decide
            failed = error
        else:
            self.budget.succeeded(retried=False)
            return result
        return await executor.run(self, failed)


def failure_of(
    fault: Fault, call: Call, error: Exception | None = None, server: str | None = None
) -> Failure:
    """The facts of an attempt that failed as ``fault`` says."""
    return Failure(
        error=error or AttemptFailed(),
        stage=fault.stage,
        reason=fault.reason,
        carried_txn_number=call.txn_number,
        labels=fault.labels,
        server=server,
        base_backoff=fault.base_backoff,
        retry_after=fault.retry_after,
        min_rtt=fault.min_rtt,
        selection=fault.selection,
        timed_out=fault.timed_out,
        server_answered=fault.server_answered,
        application_limit_ms=fault.application_limit_ms,
        listed_retryable=fault.listed_retryable,
        next_probe_in=fault.next_probe_in,
        elsewhere=fault.elsewhere,
        router_lost=fault.router_lost,
        transaction_over=fault.stage is Stage.ANSWERED and TRANSIENT_TRANSACTION in fault.labels,
    )


@dataclass(frozen=True)
class Outcome:
    """How one run ended, and everything it told the outside."""

    result: str | None
    rule: Rule | None
    attempts: int
    waits: list[float]
    """The delays as announced; the zeros are not slept."""
    slept: list[float]
    events: list[Event]
    elapsed: float
    tokens: float | None


def run_in_thread(retry_rules: RetryRules, work: BlockingWork) -> Outcome:
    heard = RecordingListener()
    executor = Executor(retry_rules, work.clock, heard)
    try:
        result = work.run(executor)
    except Final as error:
        return _outcome(work, heard, None, error.rule)
    return _outcome(work, heard, result, None)


def run_in_task(retry_rules: RetryRules, work: AwaitedWork) -> Outcome:
    heard = RecordingListener()
    executor = AsyncExecutor(retry_rules, work.clock, heard)
    try:
        result = asyncio.run(work.run(executor))
    except Final as error:
        return _outcome(work, heard, None, error.rule)
    return _outcome(work, heard, result, None)


def _outcome(
    work: FakeWork, heard: RecordingListener, result: str | None, rule: Rule | None
) -> Outcome:
    declined = [event.rule for event in heard.events if isinstance(event, RetryDeclined)]
    assert declined == ([] if rule is None else [rule]), "the events tell another end"
    waits = [event.delay for event in heard.events if isinstance(event, RetryScheduled)]
    elapsed = work.clock.now() - START
    return Outcome(
        result,
        rule,
        work.attempts,
        waits,
        work.clock.sleeps,
        heard.events,
        elapsed,
        work.budget.tokens,
    )
