"""Tailable cursors: the timeout holds for each next, and no command carries maxTimeMS for it."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo.cursor import CursorType
from support.clients import SentCommands, Side, fail_command
from support.cursor_timeouts import MINUTE, age, rest, with_max_time
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.testbed import EmbeddedServer
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest


@pytest.fixture
def coll(
    side: Side, server: EmbeddedServer, database: str, control: Any, sent: SentCommands
) -> Any:
    with set_active(False):
        control[database].create_collection("coll", capped=True, size=100_000)
        control[database].coll.insert_many([{"_id": n} for n in range(3)])
    return side.client(server.uri, event_listeners=[sent])[database].coll


@pytest.mark.parametrize("kind", [CursorType.TAILABLE, CursorType.TAILABLE_AWAIT])
@pytest.mark.parametrize("around", [override(timeout_ms=MINUTE), pymongo.timeout(MINUTE / 1000)])
def test_it_lives_on_and_the_server_is_given_no_limit(
    kind: int,
    around: Any,
    side: Side,
    coll: Any,
    control: Any,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    instrument(timeout_mode="cursor_lifetime")
    with around:
        cursor = coll.find(cursor_type=kind)
        if kind == CursorType.TAILABLE_AWAIT:
            cursor.max_await_time_ms(20)
        side.do(cursor.next)
    age(cursor)
    assert [each["_id"] for each in rest(side, cursor)] == [1, 2]
    with set_active(False):
        control[coll.database.name].coll.insert_one({"_id": 3})
    assert [each["_id"] for each in rest(side, cursor)] == [3]
    assert cursor.alive
    side.do(cursor.close)
    assert with_max_time(sent, "find") == [False]
    given = {command.get("maxTimeMS") for command in sent.named("getMore")}
    assert given == ({20} if kind == CursorType.TAILABLE_AWAIT else {None})


def test_a_next_that_takes_too_long_is_a_timeout(
    side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    wait_for_server(side, coll.database.client)
    with override(timeout_ms=1000):
        cursor = coll.find(cursor_type=CursorType.TAILABLE)
    side.do(cursor.next)
    with fail_command(control, "getMore", blockConnection=True, blockTimeMS=5000, times=1):
        *buffered, error = rest(side, cursor)
    assert len(buffered) == 2
    assert isinstance(error, OperationTimeoutError)
    assert (error.timeout_s, error.elapsed_s < 4) == (1, True)


@pytest.mark.parametrize("kind", [CursorType.TAILABLE, CursorType.TAILABLE_AWAIT])
def test_a_first_command_that_takes_too_long_is_a_timeout(
    kind: int, side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    side.do(coll.find_one)
    with override(timeout_ms=200):
        cursor = coll.find(cursor_type=kind)
    with fail_command(control, "find", blockConnection=True, blockTimeMS=5000, times=1):
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(cursor.next)
    assert (caught.value.timeout_s, caught.value.elapsed_s < 4) == (0.2, True)


def test_without_a_timeout_its_own_limit_is_sent(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    cursor = coll.find(cursor_type=CursorType.TAILABLE_AWAIT, max_time_ms=MINUTE)
    side.do(cursor.next)
    side.do(cursor.close)
    assert with_max_time(sent, "find") == [True]


def test_in_the_drivers_own_loop_as_well_the_server_is_given_no_limit(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(config_strategy="driver")
    with override(timeout_ms=MINUTE):
        cursor = coll.find(cursor_type=CursorType.TAILABLE_AWAIT)
    side.do(cursor.next)
    side.do(cursor.close)
    assert with_max_time(sent, "find") == [False]
