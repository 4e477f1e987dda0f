"""For any plan of timeouts and of what is not there in time, no wait of an operation ends too late.

The driver, its loops and the server are real, sync and async. Its clock is advanced manually, as is
the engine's; its conditions are notified, and its sockets connected, as the plan says.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pymongo import _csot
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation import driver, in_progress, runtime
from pymongo_resilience_instrumentation.timeouts.bounded_waits import RESOLUTION
from support.clients import Side
from support.engine.fake_clock import FakeClock
from support.examples import scaled
from support.telemetry import Instrument
from support.wait_helpers import half_of, wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.policies import blocks
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

ROUNDING = 1e-6
DEFAULT = 2.0
"""Seconds, of the process."""


@dataclass(frozen=True)
class Limits:
    """What a client says, in seconds; None is nothing."""

    timeout: float | None
    selection: float
    connect: float


CLIENTS = [Limits(None, 0.4, 0.2), Limits(1.0, 30.0, 0.15), Limits(0.0, 0.3, 0.2)]


@dataclass(frozen=True)
class Plan:
    limits: Limits
    bound: float | None
    blocks: tuple[tuple[str, float | None, float], ...]
    """Its kind, its seconds, and the seconds that pass in it before what follows."""
    looks: int
    """In vain, for a server, in each attempt."""
    busy: int
    """Waits for the pool that end in vain."""
    notified: float
    """At which part of a wait for the pool somebody is told."""
    connecting: float
    """Seconds until a socket is there."""


amounts = st.none() | st.integers(0, 4000).map(lambda ms: ms / 1000) | st.just(0.0)
plans = st.builds(
    Plan,
    st.sampled_from(CLIENTS),
    amounts,
    st.lists(
        st.tuples(
            st.sampled_from(["override", "pymongo.timeout"]),
            amounts,
            st.just(0.0) | st.floats(0, 1),
        ),
        max_size=3,
    ).map(tuple),
    looks=st.sampled_from([0, 0, 1, 7, 1000]),
    busy=st.sampled_from([0, 0, 1, 3]),
    notified=st.sampled_from([0.3, 0.9, 1.0]),
    connecting=st.sampled_from([0.0, 0.01]) | st.floats(0, 3),
)


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


@dataclass
class Wait:
    """What waited: for a server, the pool, a socket, or until the next attempt."""

    kind: str
    began: float
    seconds: float | None
    attempt: float
    """When that began."""


class Stage(FakeClock):
    """On which plans are played: what the driver asks for here, the plan answers."""

    def __init__(self) -> None:
        # The driver reads its sockets by the real clock, which is never ahead of this one.
        super().__init__(time.monotonic())
        self.plan: Plan | None = None
        self.pool: Any = None
        self.waits: list[Wait] = []
        self._attempt = self._looks = self._busy = 0.0

    def acts(self) -> bool:
        """For the operation alone: a monitor is left in peace."""
        return self.plan is not None and in_progress.current() is not None

    def begin_attempt(self) -> None:
        if self.plan is not None and self.acts():
            self._attempt = self.now()
            self._looks, self._busy = self.plan.looks, self.plan.busy
            self._fill_pool()

    def _fill_pool(self) -> None:
        self.pool.max_pool_size = 0 if self._busy > 0 else 100

    def choose(self, servers: Any) -> Any:
        if not self.acts() or self._looks <= 0:
            return servers
        self._looks -= 1
        return []

    def wait_for_server(self, seconds: float | None) -> bool:
        self._record("server", seconds)
        self.advance(0.02 if seconds is None else seconds)
        return False

    def wait_for_pool(self, seconds: float | None) -> bool:
        """Whether somebody was told in time."""
        assert self.plan is not None
        self._record("pool", seconds)
        self._busy -= 1
        self._fill_pool()
        self.advance((0.02 if seconds is None else seconds) * self.plan.notified)
        return seconds is None or self.plan.notified < 1

    def connect(self) -> None:
        assert self.plan is not None
        left = _csot.remaining()
        self._record("socket", left)
        own = self.plan.limits.connect if left is None else left
        self.advance(max(0.0, min(own, self.plan.connecting)))
        if self.plan.connecting >= own:
            raise TimeoutError("timed out")

    def sleep(self, seconds: float, /) -> None:
        self._record("pause", seconds)
        super().sleep(seconds)

    def _record(self, kind: str, seconds: float | None) -> None:
        self.waits.append(Wait(kind, self.now(), seconds, self._attempt))

    def play(self, plan: Plan, pool: Any) -> None:
        self.plan, self.pool = plan, pool
        self.waits.clear()

    def close(self) -> None:
        self.plan, self._busy = None, 0
        self._fill_pool()


def build(side: Side, patch: pytest.MonkeyPatch) -> Stage:
    """Beneath the wrappers, so that these meet a driver like any other."""
    stage = Stage()
    clock = SimpleNamespace(monotonic=stage.now)
    half = half_of(side)
    for module in (
        "pymongo._csot",
        "pymongo.pool_shared",
        "pymongo_resilience_instrumentation.driver.csot",
        f"pymongo.{half.name}.topology",
        f"pymongo.{half.name}.pool",
    ):
        # Before 4.20 connections were in the module of their pool.
        patch.setattr(f"{module}.time", clock, raising=False)
    patch.setattr(runtime, "ClientClock", lambda _: stage)
    loop = getattr(half.module("mongo_client"), driver.attempts.LOOP)
    patch.setattr(loop, driver.selection.SELECT, _beginning(stage, loop))
    topology, pool = half.module("topology"), half.module("pool")
    asynchronous = side.runner is not None
    for module, name, played in (
        (topology, half.wait, lambda args: stage.wait_for_server(args[1])),
        (pool, half.wait, lambda args: stage.wait_for_pool(args[1])),
        (pool, half.connect, lambda args: stage.connect()),
    ):
        original = getattr(module, name)
        goes_on = name == half.connect
        patch.setattr(module, name, _played(stage, original, played, asynchronous, goes_on))
    return stage


def _beginning(stage: Stage, drivers: type) -> Any:
    original = getattr(drivers, driver.selection.SELECT)

    @functools.wraps(original)
    def get_server(loop: Any) -> Any:
        stage.begin_attempt()
        return original(loop)

    return get_server


def _played(stage: Stage, original: Any, played: Any, asynchronous: bool, goes_on: bool) -> Any:
    """``goes_on``: what is played comes before the original, and not in its place."""

    def play(args: Any) -> Any:
        acts = stage.acts()
        result = played(args) if acts else None
        return acts and not goes_on, result

    def wait(*args: Any) -> Any:
        over, result = play(args)
        return result if over else original(*args)

    async def wait_async(*args: Any) -> Any:
        over, result = play(args)
        return result if over else await original(*args)

    return functools.wraps(original)(wait_async if asynchronous else wait)


def end_of(plan: Plan, blocks: list[tuple[str, float | None, float]], start: float) -> float | None:
    """When the operation has to end: in other words than the code's."""
    ends = []
    for kind, seconds, entered in blocks:
        if seconds:
            ends.append(seconds + (start if kind == "override" else entered))
    if ends:
        return min(ends)
    of_pymongo = [None, *(seconds for kind, seconds, _ in blocks if kind == "pymongo.timeout")]
    if of_pymongo[-1] == 0 or ("override", 0) in [block[:2] for block in blocks]:
        return None
    for seconds in (plan.bound, plan.limits.timeout, DEFAULT):
        if seconds is not None:
            return start + seconds if seconds else None
    raise AssertionError("there is a default")


def in_force() -> tuple[Any, ...]:
    """All that stands for a timeout. The round-trip time of its server an operation leaves to the
    block of ``pymongo.timeout`` that it is in."""
    csot = _csot.TIMEOUT.get(), _csot.DEADLINE.get()
    return *csot, blocks.current(), blocks.timed(), in_progress.current()


async def play(stage: Stage, coll: Any, plan: Plan) -> tuple[float, float | None, Any]:
    """When the operation began, when it has to end, and its error."""
    before, error, blocks = (*in_force(), _csot.RTT.get()), None, []
    with contextlib.ExitStack() as stack:
        for kind, seconds, passes in plan.blocks:
            blocks.append((kind, seconds, stage.now()))
            stack.enter_context(
                pymongo.timeout(seconds)
                if kind == "pymongo.timeout"
                else override(timeout_ms=milliseconds(seconds))
            )
            stage.advance(passes)
        inside, start = in_force(), stage.now()
        try:
            found = bind(coll, Policy(timeout_ms=milliseconds(plan.bound))).find_one()
            if inspect.isawaitable(found):
                await found
        except PyMongoError as raised:
            error = raised
        assert in_force() == inside
    assert (*in_force(), _csot.RTT.get()) == before
    return start, end_of(plan, blocks, start), error


def check(wait: Wait, end: float | None, limits: Limits) -> None:
    if end is None:
        if wait.kind != "server":
            return  # pymongo's own limits hold
        end = float("inf")
    assert wait.seconds is not None, "without end"
    ends = wait.began + wait.seconds
    if wait.kind == "pause":
        assert ends <= end + ROUNDING
        return
    limit = min(end, wait.attempt + limits.selection) if wait.kind == "server" else end
    if wait.kind == "socket":
        assert ends <= max(wait.began, min(limit, wait.began + limits.connect)) + ROUNDING
    else:
        assert wait.began <= max(limit, wait.attempt) + RESOLUTION + ROUNDING, "the limit was over"
        if end == float("inf") and wait.began > limit - ROUNDING:
            # pymongo waits in slices. If their sum is less than its limit by a rounding error, one
            # more slice follows.
            return
        assert ends <= max(limit, wait.began + RESOLUTION) + ROUNDING


def client_for(side: Side, proxy: ReplicaSet, stage: Stage, limits: Limits) -> Any:
    """A socket is too old once time has passed."""
    timeout = {} if limits.timeout is None else {"timeoutMS": milliseconds(limits.timeout)}
    return side.client(
        proxy.uri,
        **timeout,
        server_selector=stage.choose,
        serverSelectionTimeoutMS=milliseconds(limits.selection),
        connectTimeoutMS=milliseconds(limits.connect),
        maxIdleTimeMS=1,
    )


def test_no_wait_of_an_operation_ends_past_its_deadline(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    instrument: Instrument,
) -> None:
    stage = build(side, monkeypatch)
    instrument(timeout_ms=milliseconds(DEFAULT))
    clients = {limits: client_for(side, proxy, stage, limits) for limits in CLIENTS}
    runner = side.runner or asyncio.Runner()

    @given(plan=plans)
    @settings(max_examples=scaled(200), deadline=None, suppress_health_check=list(HealthCheck))
    def played(plan: Plan) -> None:
        client = clients[plan.limits]
        wait_for_server(side, client)
        stage.advance(1)
        (server,) = client._topology._servers.values()
        stage.play(plan, server.pool)
        try:
            start, end, error = runner.run(play(stage, client[database].coll, plan))
        finally:
            stage.close()
        for wait in stage.waits:
            check(wait, end, plan.limits)
        if end is None:
            assert not isinstance(error, OperationTimeoutError)
            return
        assert stage.now() <= max(start, end) + RESOLUTION + ROUNDING
        if stage.now() >= end:
            assert isinstance(error, OperationTimeoutError)

    played()
    if side.runner is None:
        runner.close()
