"""The timeout of a cursor: for its whole life, or anew for each batch."""

from __future__ import annotations

import time
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed.command_faults import OnCommand
from pymongo_resilience_instrumentation.tools.testbed.fault import Delay
from support.clients import SentCommands, Side, fail_command
from support.cursor_cleanup import documents
from support.cursor_timeouts import MAKERS, MINUTE, age, rest, with_max_time
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

__all__ = ["documents"]
pytestmark = pytest.mark.oldest


@pytest.fixture
def coll(side: Side, server: EmbeddedServer, documents: str, sent: SentCommands) -> Any:
    return side.client(server.uri, event_listeners=[sent])[documents].coll


@pytest.mark.parametrize("make", MAKERS)
def test_a_life_ends_at_a_batch_and_what_is_there_already_is_given(
    make: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    with override(timeout_ms=MINUTE):
        cursor = MAKERS[make](side, coll)
        side.do(cursor.next)
    before = len(sent.named("getMore"))
    age(cursor)
    *buffered, error = rest(side, cursor)
    assert len(buffered) == (0 if "raw" in make else 1)
    assert isinstance(error, OperationTimeoutError)
    assert error.timeout_s == MINUTE / 1000
    assert error.elapsed_s > 2 * MINUTE / 1000
    assert len(sent.named("getMore")) == before, "it was not even sent"
    assert with_max_time(sent, "find", "aggregate") == [True]
    assert not any(with_max_time(sent, "getMore"))


@pytest.mark.parametrize("make", MAKERS)
def test_by_iteration_each_batch_has_the_time_anew(
    make: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    telemetry = instrument()
    with override(timeout_ms=MINUTE, timeout_mode="iteration"):
        cursor = MAKERS[make](side, coll)
        side.do(cursor.next)
    age(cursor)
    assert len(rest(side, cursor)) == (4 if "raw" in make else 9)
    assert with_max_time(sent, "find", "aggregate") == [False]
    assert sent.named("getMore")
    assert not any(with_max_time(sent, "getMore"))
    for span in telemetry.operations(f"getMore {coll.database.name}.coll"):
        assert span.attributes["pymongo_resilience.deadline"] == MINUTE / 1000


@pytest.mark.parametrize("timeout_ms", [MINUTE, 0])
@pytest.mark.parametrize("made", ["find", "aggregate"])
def test_by_iteration_a_max_time_of_the_applications_is_set_aside_too(
    made: str, timeout_ms: int, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    """But not one in a document for cursor_command, which nobody looks at."""
    instrument()
    document = {"find": coll.name, "maxTimeMS": 7000}
    with override(timeout_ms=timeout_ms, timeout_mode="iteration"):
        if made == "find":
            side.documents(coll.find(max_time_ms=7000))
        else:
            side.documents(side.do(coll.aggregate, [{"$match": {}}], maxTimeMS=7000))
        side.documents(side.do(coll.database.cursor_command, document))
    assert with_max_time(sent, "find", "aggregate") == [False, True]


def test_by_iteration_the_first_command_has_the_time_as_well(
    side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    side.do(coll.find_one)
    with override(timeout_ms=200, timeout_mode="iteration"):
        cursor = coll.find(batch_size=2)
    with fail_command(control, "find", blockConnection=True, blockTimeMS=5000, times=1):
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(cursor.next)
    assert (caught.value.timeout_s, caught.value.elapsed_s < 4) == (0.2, True)


def test_each_batch_ends_by_itself_and_the_driver_keeps_its_connection_in_order(
    side: Side, coll: Any, control: Any, sent: SentCommands, instrument: Instrument
) -> None:
    """What is left out of the first command is left out of no other on that connection."""
    instrument()
    wait_for_server(side, coll.database.client)
    with override(timeout_ms=1000, timeout_mode="iteration"):
        cursor = coll.find(batch_size=5)
        side.do(cursor.next)
        side.do(coll.find_one)
    assert with_max_time(sent, "find") == [False, True]
    with fail_command(control, "getMore", blockConnection=True, blockTimeMS=5000, times=1):
        *buffered, error = rest(side, cursor)
    assert len(buffered) == 4
    assert isinstance(error, OperationTimeoutError)
    assert error.timeout_s == 1


@pytest.mark.parametrize("where", ["override", "bind", "rule", "process"])
def test_the_mode_is_set_where_timeouts_are(
    where: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    said = Policy(timeout_ms=MINUTE, timeout_mode="iteration")
    namespace = f"{coll.database.name}.*"
    if where == "process":
        instrument(timeout_ms=MINUTE, timeout_mode="iteration")
    else:
        instrument(timeout_ms=MINUTE, policies={namespace: said} if where == "rule" else None)
    if where == "bind":
        coll = bind(coll, said)
    block = override(timeout_mode="iteration") if where == "override" else override()
    with block:
        side.documents(coll.find())
        side.documents(side.do(coll.aggregate, []))
    assert with_max_time(sent, "find", "aggregate") == [False, False]
    with override(timeout_mode="cursor_lifetime"):
        side.documents(coll.find())
    assert with_max_time(sent, "find") == [False, True], "the nearest holds"


@pytest.mark.parametrize("where", ["client", "override", "bind"])
def test_the_applications_own_timeout_is_a_life_and_the_error_says_so(
    where: str,
    side: Side,
    server: EmbeddedServer,
    documents: str,
    instrument: Instrument,
) -> None:
    instrument(timeout_ms=3 * MINUTE)
    options = {"timeoutMS": MINUTE} if where == "client" else {}
    coll = side.client(server.uri, **options)[documents].coll
    if where == "bind":
        coll = bind(coll, Policy(timeout_ms=MINUTE))
    with override(timeout_ms=MINUTE if where == "override" else None):
        cursors = [coll.find(batch_size=2), side.do(coll.aggregate, [], batchSize=2)]
    for cursor in cursors:
        side.do(cursor.next)
        age(cursor)
        side.do(cursor.next)
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(cursor.next)
        assert "for the whole life of the cursor" in str(caught.value)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("where", ["process", "rule", "rule over the client's"])
def test_a_configured_timeout_ends_no_cursor(
    where: str,
    make: str,
    side: Side,
    server: EmbeddedServer,
    documents: str,
    sent: SentCommands,
    instrument: Instrument,
) -> None:
    """What nobody asked for at this cursor bounds each batch, however long the whole takes."""
    policies = {f"{documents}.*": Policy(timeout_ms=MINUTE)} if where != "process" else None
    telemetry = instrument(timeout_ms=MINUTE if where == "process" else None, policies=policies)
    options = {"timeoutMS": 2 * MINUTE} if where == "rule over the client's" else {}
    coll = side.client(server.uri, event_listeners=[sent], **options)[documents].coll
    cursor = MAKERS[make](side, coll)
    side.do(cursor.next)
    age(cursor, 5 * MINUTE)
    assert len(rest(side, cursor)) == (4 if "raw" in make else 9)
    assert with_max_time(sent, "find", "aggregate") == [False], "the server would end it"
    for span in telemetry.operations(f"getMore {documents}.coll"):
        assert span.attributes["pymongo_resilience.deadline"] == MINUTE / 1000


@pytest.mark.parametrize("where", ["process", "rule"])
def test_a_configured_timeout_is_a_life_where_the_configuration_says_so(
    where: str, side: Side, coll: Any, instrument: Instrument
) -> None:
    said = {"timeout_ms": MINUTE, "timeout_mode": "cursor_lifetime"}
    if where == "process":
        instrument(**said)
    else:
        instrument(policies={"*.*": Policy(**said)})  # type: ignore[arg-type]  # as above
    cursor = coll.find(batch_size=2)
    side.do(cursor.next)
    age(cursor)
    assert isinstance(rest(side, cursor)[-1], OperationTimeoutError)


def test_a_life_begins_with_the_first_command(
    side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    """And it is real time that ends it."""
    instrument()
    side.do(coll.find_one)
    with override(timeout_ms=1000):
        cursor = coll.find(batch_size=5)
    time.sleep(0.3)
    begun = time.monotonic()
    side.do(cursor.next)
    with fail_command(control, "getMore", blockConnection=True, blockTimeMS=5000, times=1):
        *_, error = rest(side, cursor)
        took = time.monotonic() - begun
    assert isinstance(error, OperationTimeoutError)
    assert 0.9 < took < 4
    assert 0.9 < error.elapsed_s < 4


@pytest.mark.parametrize(("mode", "begun"), [("cursor_lifetime", True), ("iteration", False)])
def test_all_batches_of_a_list_have_one_timeout(
    mode: Any, begun: bool, side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    side.do(coll.find_one)
    with override(timeout_ms=1000, timeout_mode=mode):
        cursor = coll.find(batch_size=1)
    if begun:
        side.do(cursor.next)
    with fail_command(control, "getMore", blockConnection=True, blockTimeMS=150):
        with pytest.raises(OperationTimeoutError) as caught:
            side.documents(cursor)
        assert caught.value.timeout_s == 1
        if mode == "iteration":
            cursor = cursor.clone()
            assert [side.do(cursor.next)["_id"] for _ in range(9)] == list(range(9))


def test_a_list_of_a_client_with_a_timeout_is_a_life_too(
    side: Side, server: EmbeddedServer, documents: str, instrument: Instrument
) -> None:
    """pymongo itself gives each to_list the client's timeout anew."""
    instrument()
    coll = side.client(server.uri, timeoutMS=MINUTE)[documents].coll
    cursor = coll.find(batch_size=2)
    assert len(side.do(cursor.to_list, 2)) == 2
    age(cursor)
    with pytest.raises(OperationTimeoutError):
        side.documents(cursor)


def test_a_cursor_that_is_rewound_lives_anew(side: Side, coll: Any, instrument: Instrument) -> None:
    instrument()
    with override(timeout_ms=MINUTE):
        cursor = coll.find(batch_size=2)
    side.do(cursor.next)
    age(cursor)
    assert isinstance(rest(side, cursor)[-1], OperationTimeoutError)
    side.do(cursor.rewind)
    assert len(rest(side, cursor)) == 10


def test_a_copy_has_the_policy_of_the_original(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    with override(timeout_ms=MINUTE, timeout_mode="iteration"):
        cursor = coll.find(batch_size=2)
    copy = cursor.clone()
    side.do(copy.next)
    age(copy)
    assert len(rest(side, copy)) == 9
    side.do(cursor.explain)
    assert side.do(cursor.distinct, "_id") == list(range(10))
    assert with_max_time(sent, "find") == [False]


def test_a_block_around_a_batch_can_only_shorten_it(
    side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    instrument()
    for around in (override(timeout_ms=150), pymongo.timeout(0.15)):
        with override(timeout_ms=MINUTE):
            cursor = coll.find(batch_size=2)
            side.do(cursor.next)
        with fail_command(control, "getMore", blockConnection=True, blockTimeMS=5000, times=1):
            with around:
                error = rest(side, cursor)[-1]
        assert isinstance(error, OperationTimeoutError)
        assert error.timeout_s == 0.15
    for longer in (override(timeout_ms=5 * MINUTE), override(timeout_ms=0)):
        with override(timeout_ms=MINUTE):
            cursor = coll.find(batch_size=2)
            side.do(cursor.next)
        age(cursor)
        with longer:
            error = rest(side, cursor)[-1]
        assert isinstance(error, OperationTimeoutError)
        assert error.timeout_s == MINUTE / 1000


class Late(OnCommand):
    """Holds one reply back for longer than a second."""

    def verdict(self, request: Any) -> Delay:
        del request
        return Delay(1.1)


@pytest.mark.parametrize("make", ["find", "aggregate"])
def test_a_block_of_pymongo_holds_inside_of_it_alone(
    make: str, side: Side, proxy: ReplicaSet, documents: str, instrument: Instrument
) -> None:
    """It is an end for all that is inside, and no timeout that a cursor would take away."""
    instrument()
    coll = side.client(proxy.uri)[documents].coll
    side.do(coll.find_one)
    with pymongo.timeout(1):
        cursor = MAKERS[make](side, coll)
        side.do(cursor.next)
    # The reply is late: a mongod's own work counts to the maxTimeMS of the first command.
    proxy.inject(Late("getMore"))
    assert len(rest(side, cursor)) == 9


def test_inside_of_such_a_block_no_timeout_but_the_blocks_holds(
    side: Side, coll: Any, instrument: Instrument
) -> None:
    """It wins over the default, also where that is shorter."""
    instrument(timeout_ms=MINUTE)
    with pymongo.timeout(5 * MINUTE / 1000):
        for cursor in (coll.find(batch_size=2), side.do(coll.aggregate, [], batchSize=2)):
            side.do(cursor.next)
            age(cursor)
            assert len(rest(side, cursor)) == 9


def test_the_drivers_own_loop_keeps_the_time_as_well(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(config_strategy="driver", timeout_ms=MINUTE)
    with override(timeout_ms=MINUTE):
        cursor = coll.find(batch_size=2)
    side.do(cursor.next)
    age(cursor)
    assert isinstance(rest(side, cursor)[-1], pymongo.errors.PyMongoError)
    cursor = coll.find(batch_size=2)
    side.do(cursor.next)
    age(cursor)
    assert len(rest(side, cursor)) == 9
    assert with_max_time(sent, "find") == [True, False]
