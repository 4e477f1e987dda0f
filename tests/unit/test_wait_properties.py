"""For any nesting of timeouts: a wait is handed what is left, and nothing of it leaks.

On the driver's own account of timeouts, with a manual clock. That the driver asks all of it for its
real waits is in tests/integration/test_wait_plans.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pymongo import _csot
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.driver.csot import Timeout
from pymongo_resilience_instrumentation.timeouts import bounded_waits
from pymongo_resilience_instrumentation.timeouts.bounded_waits import RESOLUTION
from support.examples import scaled

from pymongo_resilience.testing import FakeClock

pytestmark = pytest.mark.oldest

NEVER = float("inf")
ROUNDING = 1e-9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The driver's."""
    made = FakeClock(1000.0)
    stand_in = SimpleNamespace(monotonic=made.now)
    monkeypatch.setattr("pymongo._csot.time", stand_in)
    monkeypatch.setattr("pymongo_resilience_instrumentation.driver.csot.time", stand_in)
    return made


@dataclass
class Selection:
    """The last of a call: when its waits have to end."""

    ends: float = NEVER


@dataclass(frozen=True)
class Model:
    """What should be in force, without a context variable."""

    timeout: float | None = None
    ends: float = NEVER
    selection: Selection | None = None
    """Of the call, inside of one."""

    def limit(self) -> float | None:
        """When a wait for a server or a connection has to have ended."""
        if self.timeout is None:
            return None
        selection = NEVER if self.selection is None else self.selection.ends
        if self.timeout:
            return min(self.ends, selection)
        return None if selection == NEVER else selection


@dataclass(frozen=True)
class Passes:
    seconds: float


@dataclass(frozen=True)
class Waits:
    """How long a wait the driver asks for; None is without end."""

    asked: float | None


@dataclass(frozen=True)
class Selects:
    """A selection begins: serverSelectionTimeoutMS, in seconds."""

    own: float


@dataclass(frozen=True)
class Connects:
    """connectTimeoutMS, in seconds; None is none."""

    own: float | None


@dataclass(frozen=True)
class Nested:
    """A block of one kind around steps."""

    kind: str
    seconds: float
    steps: tuple[Any, ...]


def block_of(nested: Nested, model: Model, now: float) -> tuple[AbstractContextManager[Any], Model]:
    """The block, and what is in force inside."""
    seconds = nested.seconds
    end = now + seconds if seconds else NEVER
    shorter = replace(model, timeout=seconds, ends=min(model.ends, end))
    if nested.kind == "pymongo.timeout":
        return pymongo.timeout(seconds), shorter
    if nested.kind == "None":
        return pymongo.timeout(None), replace(model, timeout=None)
    if nested.kind == "begin":
        return Timeout.begin(seconds).resume(), shorter
    if nested.kind == "until":
        running = Timeout.begin(seconds).until(now + 1)
        return running.resume(), replace(shorter, ends=min(shorter.ends, now + 1))
    if nested.kind == "anew":
        return Timeout.from_now(seconds).resume(), replace(model, timeout=seconds, ends=end)
    if nested.kind == "anew, within others":
        running = Timeout.from_now(seconds).within_others()
        sooner = replace(model, timeout=seconds, ends=end) if end <= model.ends else model
        return running.resume(), sooner
    if nested.kind == "within":
        return driver.csot.within(seconds), replace(model, ends=min(model.ends, now + seconds))
    return in_a_call(), replace(model, selection=Selection())


KINDS = [
    "pymongo.timeout", "None", "begin", "until", "anew", "anew, within others", "within", "a call",
]  # fmt: skip


class in_a_call(AbstractContextManager[None]):  # noqa: N801 - reads as a statement
    def __enter__(self) -> None:
        self._call = calls.Call(None, "find", ("db", "coll"))
        calls.enter(self._call)

    def __exit__(self, *raised: object) -> None:
        calls.leave(self._call)


@dataclass
class Walk:
    """Goes through a plan, and holds what the driver is handed against the model."""

    clock: FakeClock

    def through(self, steps: tuple[Any, ...], model: Model) -> Iterator[None]:
        """Stops after each step, so that others may take theirs."""
        for step in steps:
            if isinstance(step, Nested):
                block, inside = block_of(step, model, self.clock.now())
                rtt = _csot.get_rtt()
                with block:
                    yield
                    if step.kind not in {"within", "a call"}:
                        _csot.set_rtt(rtt + 1)
                    yield from self.through(step.steps, inside)
                self.check_what_is_in_force(model)
                assert _csot.get_rtt() == rtt
            elif isinstance(step, Passes):
                self.clock.advance(step.seconds)
            elif isinstance(step, Selects):
                self.select(step.own, model)
            elif isinstance(step, Waits):
                self.wait(step.asked, model)
            else:
                self.connect(step.own, model)
            yield

    def check_what_is_in_force(self, model: Model) -> None:
        assert (_csot.TIMEOUT.get(), _csot.DEADLINE.get()) == (model.timeout, model.ends)

    def select(self, own: float, model: Model) -> None:
        if model.timeout is None:
            return  # the wrapper leaves that to the driver
        now = self.clock.now()
        topology = SimpleNamespace(_settings=SimpleNamespace(server_selection_timeout=own))
        left = driver.csot.remaining()
        handed = bounded_waits.begin_selection(topology, own if left is None else left)
        ends = model.ends if model.timeout else NEVER
        assert handed == pytest.approx(min(own, ends - now), abs=ROUNDING)
        if model.selection is not None:
            model.selection.ends = now + (own or NEVER)

    def wait(self, asked: float | None, model: Model) -> None:
        now, limit = self.clock.now(), model.limit()
        handed = bounded_waits.shortened(asked, of_pool=False)
        of_pool = bounded_waits.shortened(asked, of_pool=True)
        if limit is None:
            assert handed == of_pool == asked
            return
        if model.timeout:
            assert of_pool == handed
        else:
            left = max(limit - now, RESOLUTION)
            assert of_pool == pytest.approx(left), "the older timeout is set aside"
        if handed is None:
            assert asked is None
            assert limit == NEVER
            return
        assert handed > 0
        assert now + handed <= max(limit, now + RESOLUTION) + ROUNDING, "past the deadline"
        assert asked is None or handed <= asked, "longer than the driver asked for"
        enough = min(limit - now, NEVER if asked is None else asked)
        assert handed >= enough - ROUNDING, "shorter than it might be"

    def connect(self, own: float | None, model: Model) -> None:
        now, limit = self.clock.now(), model.limit()
        options = SimpleNamespace(connect_timeout=own)
        handed = bounded_waits.time_to_connect((("host", 1), options), {})
        if limit is None:
            assert handed is None
            return
        assert handed is not None
        assert handed == pytest.approx(min(limit - now, own or NEVER), abs=ROUNDING)
        before = _csot.DEADLINE.get()
        with bounded_waits.within_wait(handed):
            left = driver.csot.remaining()
            assert left is not None
            assert now + left <= max(limit, now + RESOLUTION) + ROUNDING
        assert _csot.DEADLINE.get() == before


some_seconds = st.sampled_from([0.001, 0.5, 2.0]) | st.floats(0.0005, 30)
waiting = (
    st.builds(Passes, st.floats(0, 5))
    | st.builds(Waits, st.none() | some_seconds)
    | st.builds(Connects, st.none() | some_seconds)
)
selections = st.builds(Selects, st.just(0.0) | some_seconds)


def _attempt(selection: Selects, steps: list[Any]) -> Nested:
    return Nested("a call", 0, (selection, *steps))


attempts = st.builds(_attempt, selections, st.lists(waiting, min_size=1, max_size=3))


def _nested(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        Nested,
        st.sampled_from(KINDS),
        some_seconds | some_seconds | st.just(0),
        st.lists(inside | waiting | attempts | selections, min_size=1, max_size=4).map(tuple),
    )


plans = st.lists(_nested(st.recursive(attempts, _nested, max_leaves=6)), max_size=3).map(tuple)


def nothing_in_force() -> bool:
    csot = _csot.TIMEOUT.get(), _csot.DEADLINE.get(), _csot.RTT.get()
    return csot == (None, NEVER, 0.0) and calls.current() is None


FRUITLESS = (Passes(0.4), Waits(0.5), Connects(None))
UNDER_A_LONG_DEADLINE = [
    (Nested("pymongo.timeout", 20.0, (_attempt(Selects(own), list(FRUITLESS)),)),)
    for own in (0.0, 0.5)
]

TIMEOUTS_OF_SELECTIONS = (
    Nested(
        "a call",
        0,
        (
            Nested("pymongo.timeout", 0.001, (Selects(0.001),)),
            Nested("pymongo.timeout", 0, (Selects(0.0),)),
            Nested("pymongo.timeout", 0.5, (Waits(None), Connects(None))),
        ),
    ),
)


@given(plan=plans)
@example(plan=UNDER_A_LONG_DEADLINE[0])
@example(plan=UNDER_A_LONG_DEADLINE[1])
@example(plan=TIMEOUTS_OF_SELECTIONS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_wait_is_handed_more_than_is_left(clock: FakeClock, plan: tuple[Any, ...]) -> None:
    for _ in Walk(clock).through(plan, Model()):
        pass
    assert nothing_in_force()


@given(all_plans=st.lists(plans, min_size=2, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=scaled(100))
def test_nor_because_of_another_task(clock: FakeClock, all_plans: list[tuple[Any, ...]]) -> None:
    """Each has its own step in turn."""

    async def walk(plan: tuple[Any, ...]) -> None:
        for _ in Walk(clock).through(plan, Model()):
            await asyncio.sleep(0)
        assert nothing_in_force()

    async def main() -> None:
        await asyncio.gather(*(walk(plan) for plan in all_plans))
        assert nothing_in_force()

    asyncio.run(main())
