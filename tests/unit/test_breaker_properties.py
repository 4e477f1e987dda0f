"""A circuit breaker as a state machine, beside one that keeps a list of everything.

Times are multiples of 1/8 s, so that sums of floats are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from support.engine.fake_clock import FakeClock

from pymongo_resilience.breakers import (
    RECHECK,
    BreakerSettings,
    CircuitBreaker,
    Evidence,
    Permit,
    Snapshot,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 128.0
HEALTHY, UNHEALTHY, NONE = Evidence


@dataclass
class Period:
    """From one change of state to the next."""

    state: State
    since: float
    calls: list[tuple[float, bool]] = field(default_factory=list)
    """While it is closed: when each ended, and whether it failed."""
    given: list[float] = field(default_factory=list)
    """While it is half-open: when each probe of which nothing was heard began."""
    succeeded: int = 0


@dataclass
class Naive:
    """The breaker in the words of its documents."""

    settings: BreakerSettings
    now: float = START
    period: Period = field(default_factory=lambda: Period(State.CLOSED, START))
    opened_by: list[bool] = field(default_factory=list)
    """Whether each of the calls failed that have opened it."""
    told: list[State] = field(default_factory=list)
    """What somebody who watches it hears."""

    def become(self, state: State) -> None:
        self.period = Period(state, self.now)

    def open_or_close(self, state: State) -> None:
        self.become(state)
        self.told.append(state)

    def look(self) -> Period:
        if (
            self.period.state is State.OPEN
            and self.now >= self.period.since + self.settings.open_for
        ):
            self.become(State.HALF_OPEN)
        return self.period

    def in_window(self) -> list[bool]:
        """Whether each of the calls failed that count now: those of this tenth of the window and
        of the nine before it."""
        tenth = self.settings.window / 10

        def number(time: float) -> int:
            return int((time - self.period.since) // tenth)

        return [
            failed for time, failed in self.period.calls if number(time) > number(self.now) - 10
        ]

    def free_probes(self) -> int:
        heard_of_in_time = [
            it for it in self.period.given if it + self.settings.open_for > self.now
        ]
        return self.settings.probes - self.period.succeeded - len(heard_of_in_time)

    def allows(self) -> bool:
        state = self.look().state
        return state is State.CLOSED or (state is State.HALF_OPEN and self.free_probes() > 0)

    def hear(self, period: Period, began: float, evidence: Evidence) -> None:
        if period is not self.period:
            return
        if period.state is State.HALF_OPEN:
            period.given.remove(began)
            if evidence is UNHEALTHY:
                self.open_or_close(State.OPEN)
            period.succeeded += evidence is HEALTHY
            if period.succeeded == self.settings.probes:
                self.open_or_close(State.CLOSED)
        elif evidence is not NONE:
            period.calls.append((self.now, evidence is UNHEALTHY))
            counted = self.in_window()
            rate = Fraction(sum(counted), len(counted))
            enough = len(counted) >= self.settings.minimum_calls
            if evidence is UNHEALTHY and enough and rate >= Fraction(self.settings.failure_rate):
                self.opened_by = counted
                self.open_or_close(State.OPEN)


@dataclass
class Call:
    """Sent, and not yet heard of."""

    permit: Permit
    period: Period
    began: float


class Breaker(RuleBasedStateMachine):
    """Any order of calls, ends of calls, losses and waits."""

    calls = Bundle("calls")
    ended = Bundle("ended")

    @initialize(
        settings=st.builds(
            BreakerSettings,
            failure_rate=st.sampled_from([0.125, 0.5, 1.0]),
            window=st.sampled_from([1.25, 10.0]),
            minimum_calls=st.integers(1, 4),
            open_for=st.sampled_from([0.5, 4.0, 20.0]),
            probes=st.integers(1, 3),
        )
    )
    def begin(self, settings: BreakerSettings) -> None:
        self.clock = FakeClock(START)
        self.told: list[Snapshot] = []
        self.breaker = CircuitBreaker(settings, self.clock, self.hear)
        self.naive = Naive(settings)

    def hear(self, change: Snapshot) -> None:
        assert not self.breaker.lock._is_owned()
        assert change == self.breaker.snapshot()
        self.told.append(change)

    @rule(eighths=st.integers(1, 40) | st.sampled_from([80, 160, 8000]))
    def time_passes(self, eighths: int) -> None:
        self.clock.advance(eighths / 8)
        self.naive.now += eighths / 8

    @rule(target=calls, number=st.integers(1, 4))
    def calls_begin(self, number: int) -> object:
        return multiple(*self._sent(number))

    def _sent(self, number: int) -> Iterator[Call]:
        """There is a permit exactly where the naive one has one."""
        for _ in range(number):
            allowed = self.naive.allows()
            answer = self.breaker.try_acquire()
            assert isinstance(answer, Permit) is allowed
            if isinstance(answer, float):
                assert answer == self.breaker.next_probe_in()
                continue
            period = self.naive.look()
            if period.state is State.HALF_OPEN:
                period.given.append(self.naive.now)
            yield Call(answer, period, self.naive.now)

    @rule(target=ended, call=consumes(calls), evidence=st.sampled_from(Evidence))
    def a_call_ends(self, call: Call, evidence: Evidence) -> Call:
        self._ends(call, evidence)
        return call

    def _ends(self, call: Call, evidence: Evidence) -> None:
        self.naive.look()
        call.permit.report(evidence)
        self.naive.hear(call.period, call.began, evidence)

    @rule(call=consumes(calls))
    def a_call_is_lost(self, call: Call) -> None:
        """Nobody says what became of it: nothing to check, but what follows."""

    @rule(call=ended, evidence=st.sampled_from(Evidence))
    def a_probe_is_heard_of_again(self, call: Call, evidence: Evidence) -> None:
        if call.period.state is State.HALF_OPEN:
            call.permit.report(evidence)

    @rule(outcomes=st.lists(st.sampled_from([HEALTHY, UNHEALTHY]), min_size=1, max_size=5))
    def calls_one_after_the_other(self, outcomes: list[Evidence]) -> None:
        for evidence in outcomes:
            for call in self._sent(1):
                self._ends(call, evidence)

    @rule(eighth=st.sampled_from([-1, 0, 0, 0, 1]))
    def the_breaker_was_open_for_long_enough(self, eighth: int) -> None:
        self.time_passes(int(self.naive.settings.open_for * 8) + eighth)

    @rule(odds=st.integers(0, 9))
    def the_process_forks(self, odds: int) -> None:
        if odds == 9:
            self.breaker.reset_after_fork()
            self.naive.become(State.CLOSED)

    @invariant()
    def it_is_what_the_naive_one_is(self) -> None:
        period = self.naive.look()
        closed = period.state is State.CLOSED
        counted = self.naive.in_window() if closed else self.naive.opened_by
        snapshot = self.breaker.snapshot()
        assert snapshot.state is period.state
        assert (snapshot.calls, snapshot.failures) == (len(counted), sum(counted))
        assert (self.breaker.next_probe_in() == 0) is self.naive.allows()

    @invariant()
    def a_call_counts_for_nine_tenths_of_the_window_and_no_longer_than_all_of_it(self) -> None:
        window, now = self.naive.settings.window, self.naive.now
        ages = [now - time for time, _ in self.naive.look().calls]
        if self.naive.period.state is not State.CLOSED:
            return
        calls = self.breaker.snapshot().calls
        assert calls >= sum(age < window * 0.9 for age in ages)
        assert calls <= sum(age < window for age in ages)

    @invariant()
    def who_watches_it_hears_of_every_change(self) -> None:
        assert [change.state for change in self.told] == self.naive.told

    @invariant()
    def whoever_is_refused_is_not_left_waiting(self) -> None:
        """Open, it is asked when its time is over; half-open, soon. Nothing stays shut for good."""
        wait = self.breaker.next_probe_in()
        period = self.naive.look()
        if period.state is State.OPEN:
            assert wait == period.since + self.naive.settings.open_for - self.naive.now
        else:
            assert 0 <= wait <= RECHECK


TestBreaker = Breaker.TestCase
TestBreaker.settings = settings(stateful_step_count=60)
