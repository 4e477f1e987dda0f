"""Nested timeouts: the shorter holds, and nothing of them is left where they are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pymongo import _csot
from pymongo_resilience_instrumentation.tools.testbed.fault import HELLO_COMMANDS, Interception
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side, wait_until
from support.examples import scaled
from support.telemetry import Instrument
from support.transactions import LONG, LOW, DriversTime, drivers_time, limits

from pymongo_resilience import OperationTimeoutError, override, uninstrument
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import EMPTY_POLICY as NO_POLICY
from pymongo_resilience.testbed import ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest


def in_force() -> tuple[Any, ...]:
    """All that stands for a timeout in this thread or task."""
    csot = _csot.TIMEOUT.get(), _csot.DEADLINE.get(), _csot.RTT.get()
    return *csot, blocks.current(), blocks.timed()


NOTHING = (None, float("inf"), 0.0, NO_POLICY, None)

SECONDS = (0, 20, 40, 60)
BLOCKS = st.one_of(
    st.builds(lambda s: ("override", s), st.sampled_from((None, *SECONDS))),
    st.builds(lambda s: ("pymongo.timeout", s), st.sampled_from((None, *SECONDS))),
)


def block(kind: str, seconds: int | None) -> Any:
    if kind == "pymongo.timeout":
        return pymongo.timeout(seconds)
    if seconds is None:
        return override(idempotent=True)
    return override(timeout_ms=seconds * 1000)


@pytest.fixture(params=["default", "none"])
def default(request: pytest.FixtureRequest, instrument: Instrument) -> int | None:
    seconds = 80 if request.param == "default" else None
    instrument(timeout_ms=None if seconds is None else seconds * 1000)
    return seconds


@given(st.lists(BLOCKS, max_size=4))
@example([("pymongo.timeout", 20), ("pymongo.timeout", 0)])
@settings(max_examples=scaled(30), deadline=None, suppress_health_check=list(HealthCheck))
def test_of_any_nested_timeouts_the_shortest_holds(
    default: int | None, server: EmbeddedServer, blocks: list[tuple[str, int | None]]
) -> None:
    sent = SentCommands()
    options: Any = {"event_listeners": [sent], "serverMonitoringMode": "poll"}
    with pymongo.MongoClient(server.uri, **options) as client:
        with contextlib.ExitStack() as stack:
            for kind, seconds in blocks:
                stack.enter_context(block(kind, seconds))
            client.db.coll.find_one()
        assert in_force() == NOTHING
        client.db.coll.find_one()
    finite = [seconds for _, seconds in blocks if seconds]
    # A timeout of 0 holds over the default, which is no block; but a None hides it in pymongo.
    of_pymongo = [None, *(seconds for kind, seconds in blocks if kind == "pymongo.timeout")]
    without_end = ("override", 0) in blocks or of_pymongo[-1] == 0
    expected = min(finite) if finite else (None if without_end else default)
    inside, after = limits(sent, "find")
    for limit, seconds in ((inside, expected), (after, default)):
        if seconds is None:
            assert limit is None
        else:
            assert limit is not None
            assert seconds - 15 < limit / 1000 <= seconds


class Hellos(Interception):
    """Every hello that a member is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_request(self, request: Any, connection: Any) -> Any:
        if request.command_name in HELLO_COMMANDS:
            self.seen.append(request.body)


@pytest.mark.parametrize("mode", ["poll", "stream"])
def test_nor_of_the_monitors_that_the_first_operation_starts(
    mode: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    """In an async client they are tasks, and keep the context of the first operation for good."""
    instrument(timeout_ms=LONG)
    hellos = Hellos()
    proxy.inject(hellos)
    coll = side.client(proxy.uri, serverMonitoringMode=mode)[database].coll
    with override(timeout_ms=LOW), pymongo.timeout(LOW / 1000):
        side.do(coll.find_one)
    drivers_time.passed = LOW
    asked = len(hellos.seen)

    def asked_again() -> bool:
        return len(hellos.seen) >= asked + 2

    if side.runner is None:
        wait_until(asked_again)
    else:
        side.do(asyncio.to_thread, wait_until, asked_again)
    assert all("maxTimeMS" not in each for each in hellos.seen)
    assert side.do(coll.find_one) is None


def test_after_uninstrument_an_override_does_nothing(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=LONG)
    sent = SentCommands()
    coll = side.client(server.uri, event_listeners=[sent])[database].coll
    with override(timeout_ms=LOW):
        uninstrument()
        side.do(coll.find_one)
    assert limits(sent, "find") == [None]
    assert in_force() == NOTHING


@pytest.mark.parametrize("around", [contextlib.nullcontext, lambda: override(timeout_ms=LONG)])
def test_what_is_gone_of_a_block_is_counted_from_its_beginning(
    around: Callable[[], Any], side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument, drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    coll = side.client(proxy.uri)[database].coll
    with pymongo.timeout(LOW / 1000), around():
        side.do(coll.find_one)
        drivers_time.passed = LOW / 1000
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(coll.find_one)
    assert (caught.value.timeout_s, caught.value.attempts) == (LOW / 1000, 1)
    assert caught.value.elapsed_s >= LOW / 1000
