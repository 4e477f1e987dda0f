"""Change streams: one timeout for a whole next, and after it the next one goes on."""

from __future__ import annotations

import time
from typing import Any

import pymongo
import pytest
from support.clients import SentCommands, Side, fail_command
from support.cursor_cleanup import background_by_hand, is_open, run_background
from support.cursor_timeouts import MINUTE
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.testbed import EmbeddedServer
from pymongo_resilience.testing import set_active

__all__ = ["background_by_hand"]
pytestmark = [pytest.mark.oldest, pytest.mark.usefixtures("background_by_hand")]


@pytest.fixture
def coll(
    side: Side, server: EmbeddedServer, database: str, control: Any, sent: SentCommands
) -> Any:
    with set_active(False):
        control[database].create_collection("coll")
    client = side.client(server.uri, event_listeners=[sent])
    wait_for_server(side, client)
    sent.started_events.clear()
    return client[database].coll


def write(control: Any, coll: Any, *ids: int) -> None:
    """By somebody else."""
    with set_active(False):
        control[coll.database.name].coll.insert_many([{"_id": n} for n in ids])


def read(side: Side, stream: Any, count: int) -> list[int]:
    return [side.do(stream.next)["documentKey"]["_id"] for _ in range(count)]


def expire(side: Side, stream: Any, method: str = "next") -> tuple[OperationTimeoutError, float]:
    started = time.monotonic()
    with pytest.raises(OperationTimeoutError) as caught:
        side.do(getattr(stream, method))
    return caught.value, time.monotonic() - started


@pytest.mark.parametrize("where", ["override", "bind", "client"])
def test_it_holds_for_a_whole_next_and_the_following_goes_on(
    where: str,
    side: Side,
    server: EmbeddedServer,
    database: str,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    """Many getMores find nothing, each in time, until the next is over."""
    said = Policy(timeout_ms=1000)
    instrument(timeout_ms=MINUTE)
    options = {"timeoutMS": 1000} if where == "client" else {}
    client = side.client(server.uri, event_listeners=[sent], **options)
    coll = client[database].coll
    write(control, coll, 0)
    wait_for_server(side, client)
    target = bind(coll, said) if where == "bind" else coll
    with override(timeout_ms=1000) if where == "override" else override():
        stream = side.do(target.watch, max_await_time_ms=25)
    write(control, coll, 1)
    assert read(side, stream, 1) == [1]
    error, elapsed = expire(side, stream)
    assert error.timeout_s == 1
    assert 0.9 < elapsed < 5
    assert len(sent.named("getMore")) > 1
    assert {command.get("maxTimeMS") for command in sent.named("getMore")} == {25}
    assert "maxTimeMS" in sent.named("aggregate")[0]
    assert stream.alive
    write(control, coll, 2, 3)
    assert read(side, stream, 2) == [2, 3], "none of those made meanwhile is missing"
    side.do(stream.close)
    assert 500 < sent.named("killCursors")[-1]["maxTimeMS"] <= 1000


def test_after_a_timeout_it_resumes_before_it_asks_for_more(
    side: Side, coll: Any, control: Any, sent: SentCommands, instrument: Instrument
) -> None:
    telemetry = instrument()
    with override(timeout_ms=1000):
        stream = side.do(coll.watch, max_await_time_ms=20)
    with fail_command(control, "getMore", blockConnection=True, blockTimeMS=5000, times=1):
        _, elapsed = expire(side, stream)
    assert elapsed < 4
    cursor_id = sent.named("getMore")[-1]["getMore"]
    write(control, coll, 1)
    del sent.started_events[:]
    telemetry.clear()
    assert read(side, stream, 1) == [1]
    assert sent.started_events[0].command_name == "aggregate"
    resumed = telemetry.operations(f"aggregate {coll.full_name}")
    assert len(resumed) == 1, "a resume is an operation to be seen"
    run_background(side, coll.database.client)
    assert not is_open(control, coll.database.name, cursor_id)
    side.do(stream.close)


def test_a_resume_shares_the_time_of_its_next(
    side: Side, coll: Any, control: Any, sent: SentCommands, instrument: Instrument
) -> None:
    """Each of the two is in time, the getMore that fails and the aggregate; both are not."""
    instrument()
    with override(timeout_ms=2000):
        stream = side.do(coll.watch, max_await_time_ms=20)
    slow = {"blockConnection": True, "blockTimeMS": 1100, "errorCode": 43}
    with fail_command(control, "getMore", "aggregate", **slow):
        error, elapsed = expire(side, stream)
    names = [event.command_name for event in sent.started_events]
    assert names == ["aggregate", "getMore", "aggregate"]
    assert (error.timeout_s, elapsed > 1.9) == (2, True)
    assert stream.alive
    write(control, coll, 1)
    assert read(side, stream, 1) == [1]
    side.do(stream.close)


def test_the_error_of_a_resume_is_the_applications(
    side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument(config_strategy="fast_fail")
    with override(timeout_ms=1000):
        stream = side.do(coll.watch, max_await_time_ms=20)
    expire(side, stream)
    with fail_command(control, "aggregate", errorCode=13):
        with pytest.raises(pymongo.errors.OperationFailure) as caught:
            side.do(stream.next)
    assert caught.value.code == 13


@pytest.mark.parametrize("block", ["override", "pymongo.timeout"])
@pytest.mark.parametrize("method", ["next", "try_next", "iteration"])
def test_a_block_around_a_next_can_only_shorten_it(
    method: str, block: str, side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    name = {"iteration": "__next__" if side.name == "sync" else "__anext__"}.get(method, method)
    # Of the time that it is given, a stream may need some to be opened.
    pairs = [(MINUTE, 200), (600, MINUTE)]
    for given, around in [*pairs, (600, 0), (0, 200)] if method == "next" else pairs:
        with override(timeout_ms=given):
            stream = side.do(coll.watch, max_await_time_ms=20 if method != "try_next" else None)
        ours = block == "override"
        with override(timeout_ms=around) if ours else pymongo.timeout(around / 1000):
            error, elapsed = expire(side, stream, name)
        holds = min(each for each in (given, around) if each) / 1000
        assert error.timeout_s == holds
        # The server is given what is left of the timeout, less the round trip of a busy machine.
        assert 0.5 * holds < error.elapsed_s < 5
        assert elapsed < 5
        side.do(stream.close)
