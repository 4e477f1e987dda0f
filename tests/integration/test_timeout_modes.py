"""What cannot be asked for: a mode without a timeout, and modes that some cursors do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo.cursor import CursorType
from support.clients import SentCommands, Side
from support.cursor_cleanup import documents
from support.cursor_timeouts import MINUTE
from support.servers import cases
from support.telemetry import Instrument

from pymongo_resilience import ConfigurationError, Policy, bind, override
from pymongo_resilience.testbed import EmbeddedServer

__all__ = ["documents"]
pytestmark = pytest.mark.oldest

LISTED = {"listIndexes": "coll", "cursor": {}}
MADE: dict[str, Callable[[Side, Any], Any]] = {
    "find": lambda side, coll: side.do(coll.find().next),
    "to_list": lambda side, coll: side.documents(coll.find()),
    "find_raw_batches": lambda side, coll: side.do(coll.find_raw_batches().next),
    "aggregate": lambda side, coll: side.do(coll.aggregate, []),
    "aggregate_raw_batches": lambda side, coll: side.do(coll.aggregate_raw_batches, []),
    "list_indexes": lambda side, coll: side.do(coll.list_indexes),
    "database.aggregate": lambda side, coll: side.do(
        coll.database.aggregate, [{"$documents": [{"n": 1}]}]
    ),
    "list_collections": lambda side, coll: side.do(coll.database.list_collections),
    "cursor_command": lambda side, coll: side.do(coll.database.cursor_command, LISTED),
}


@pytest.fixture
def coll(side: Side, server: EmbeddedServer, documents: str, sent: SentCommands) -> Any:
    return side.client(server.uri, event_listeners=[sent])[documents].coll


@pytest.mark.parametrize("made", cases(MADE, {"database.aggregate": "5.1"}))
def test_a_mode_without_a_timeout_is_an_error_and_nothing_is_sent(
    made: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    telemetry = instrument()
    for mode in ("iteration", "cursor_lifetime"):
        with override(timeout_mode=mode), pytest.raises(ConfigurationError) as caught:
            MADE[made](side, coll)
        (problem,) = caught.value.problems
        assert f"timeout_mode={mode}" in problem
        assert "timeout_ms" in problem
    assert sent.started_events == []
    telemetry.clear()
    with override(timeout_mode="iteration"), pymongo.timeout(10):
        MADE[made](side, coll)
    side.do(coll.find_one)
    assert telemetry.operations()[-1].parent is None, "nothing is left of the calls that failed"


@pytest.mark.parametrize("where", ["bind", "rule", "process"])
def test_a_policy_may_not_say_it_either_and_the_process_may(
    where: str, side: Side, coll: Any, instrument: Instrument
) -> None:
    """For the process it is a default, for operations that have a timeout."""
    said = Policy(timeout_mode="iteration")
    policies = {f"{coll.database.name}.coll": said} if where == "rule" else None
    instrument(policies=policies, timeout_mode="iteration" if where == "process" else None)
    target = bind(coll, said) if where == "bind" else coll
    if where == "process":
        assert len(side.documents(target.find())) == 10
    else:
        with pytest.raises(ConfigurationError):
            side.documents(target.find())
    # What makes no cursor has no mode, and no rule speaks of the other collection.
    assert side.do(target.find_one) == {"_id": 0}
    assert side.do(target.distinct, "_id") == list(range(10))
    side.documents(coll.database.other.find())


@pytest.mark.parametrize("stage", ["$out", "$merge"])
def test_an_aggregate_that_writes_cannot_be_by_iteration(
    stage: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(timeout_ms=MINUTE)
    pipeline = [{stage: "other" if stage == "$out" else {"into": "other"}}]
    with override(timeout_mode="iteration"):
        with pytest.raises(ConfigurationError, match=rf"with \{stage}: use cursor_lifetime"):
            side.do(coll.aggregate, pipeline)
        with pytest.raises(ConfigurationError):
            side.do(coll.aggregate, pipeline=pipeline)
    assert sent.started_events == []
    side.do(coll.aggregate, pipeline)
    (command,) = sent.named("aggregate")
    assert "maxTimeMS" in command


@pytest.mark.parametrize("mode", ["iteration", None])
def test_the_configured_mode_is_no_error_for_an_aggregate_that_writes(
    mode: str | None, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    """Its one command is all of it: the server is told when nobody waits any more."""
    instrument(timeout_ms=MINUTE, timeout_mode=mode)
    side.do(coll.aggregate, [{"$out": "other"}])
    (command,) = sent.named("aggregate")
    assert "maxTimeMS" in command
    assert len(side.documents(coll.database.other.find())) == 10


@pytest.mark.parametrize("kind", [CursorType.TAILABLE, CursorType.TAILABLE_AWAIT])
def test_a_tailable_cursor_has_no_life(
    kind: int, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(timeout_ms=MINUTE)
    with override(timeout_mode="cursor_lifetime"):
        flagged = side.do(coll.find().add_option, CursorType.TAILABLE)
        for cursor in (coll.find(cursor_type=kind), flagged):
            with pytest.raises(ConfigurationError, match="for a tailable cursor: use iteration"):
                side.do(cursor.next)
    assert sent.started_events == []


@pytest.mark.parametrize("where", ["override", "client", "pymongo.timeout"])
def test_a_server_must_not_be_asked_to_wait_longer_than_there_is_time(
    where: str,
    side: Side,
    server: EmbeddedServer,
    documents: str,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=1000)
    options = {"timeoutMS": 5000} if where == "client" else {}
    coll = side.client(server.uri, event_listeners=[sent], **options)[documents].coll
    block = {"override": override(timeout_ms=5000), "pymongo.timeout": pymongo.timeout(5)}
    with block.get(where, override()):
        for too_long in (5000, 10_000):
            expected = f"max_await_time_ms={too_long}: expected less than the timeout of 5000 ms"
            cursor = coll.find(cursor_type=CursorType.TAILABLE_AWAIT)
            with pytest.raises(ConfigurationError, match=expected):
                side.do(cursor.max_await_time_ms(too_long).next)
            for watched in (coll, coll.database, coll.database.client):
                with pytest.raises(ConfigurationError, match=expected):
                    side.do(watched.watch, max_await_time_ms=too_long)
                with pytest.raises(ConfigurationError, match=expected):
                    side.do(watched.watch, [], None, None, too_long)
        assert sent.started_events == []
        stream = side.do(coll.watch, max_await_time_ms=1)
    side.do(stream.close)


def test_a_change_stream_has_no_mode(side: Side, coll: Any, instrument: Instrument) -> None:
    instrument()
    for mode in ("iteration", "cursor_lifetime"):
        with override(timeout_mode=mode):
            stream = side.do(coll.watch, max_await_time_ms=1)
            assert side.do(stream.try_next) is None
            side.do(stream.close)
