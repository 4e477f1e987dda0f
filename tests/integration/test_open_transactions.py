"""Transactions whose abort was not answered: the client's background task aborts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pymongo
import pytest
from support.clients import SentCommands, Side, wait_until
from support.interruption import Held, interrupt
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience import override, retry_transaction
from pymongo_resilience.testbed import (
    CutBefore,
    Fail,
    Fault,
    Overload,
    Refuse,
    ReplicaSet,
    Reset,
    ShardedCluster,
)

pytestmark = pytest.mark.oldest
INC = {"$inc": {"n": 1}}
SHORT = 1_000
"""Milliseconds: aborts are repeated as long."""


class Own(Exception):  # noqa: N818 - no error
    """The application's."""


def _body(side: Side, coll: Any) -> Any:
    """Updates, and raises an error of the application's."""

    def body(session: Any) -> None:
        coll.update_one({"_id": 1}, INC, session=session)
        raise Own

    async def async_body(session: Any) -> None:
        await coll.update_one({"_id": 1}, INC, session=session)
        raise Own

    return body if side.runner is None else async_body


def _with_transaction(side: Side, coll: Any) -> Any:
    with session_of(side, coll.database.client) as session:
        side.do(session.with_transaction, _body(side, coll))


def _retry_transaction(side: Side, coll: Any) -> Any:
    side.do(retry_transaction(coll.database.client)(_body(side, coll)))


def _atomic(side: Side, coll: Any) -> Any:
    with override(atomic=True):
        side.do(coll.update_many, {}, [{"$set": {"_id": {"$add": ["$_id", 1]}}}])


RUNS = {"with_transaction": _with_transaction, "retry": _retry_transaction, "atomic": _atomic}


@pytest.mark.parametrize("timeout_ms", [None, SHORT])
@pytest.mark.parametrize("name", RUNS)
def test_what_could_not_be_aborted_is_aborted_in_the_background(
    name: str, timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=timeout_ms)
    control[database].coll.insert_many([{"_id": 1, "n": 0}, {"_id": 2, "n": 0}])
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    proxy.inject(CutBefore("abortTransaction", times=1_000))
    with pytest.raises((Own, pymongo.errors.OperationFailure)):
        RUNS[name](side, client[database].coll)
    proxy.clear()
    write = control[database].coll.update_many
    with pymongo.timeout(10):
        # While the async client's task runs.
        call = (write,) if side.runner is None else (asyncio.to_thread, write)
        assert side.do(*call, {}, INC).modified_count == 2
    assert control[database].coll.distinct("n") == [1]
    numbers = {each["txnNumber"] for each in sent.named("abortTransaction")}
    assert numbers == {each["txnNumber"] for each in sent.named("update")}


def test_a_cancelled_abort_is_sent_in_the_background(
    proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"_id": 1, "n": 0})

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri) as client:
            session, held = client.start_session(), Held("abortTransaction")
            await session.start_transaction()
            await client[database].coll.update_one({"_id": 1}, INC, session=session)
            proxy.inject(held)
            task = asyncio.ensure_future(session.abort_transaction())
            await asyncio.to_thread(wait_until, held.has_it)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.clear()
            write = control[database].coll.update_one
            with pymongo.timeout(10):
                await asyncio.to_thread(write, {"_id": 1}, INC)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert control[database].coll.distinct("n") == [1]


@pytest.mark.parametrize(
    "refusal",
    [
        partial(Overload, "abortTransaction", times=1_000),
        partial(Fail, "abortTransaction", times=1_000, code=91),
        partial(Fail, "abortTransaction", times=1_000, code=6),
    ],
    ids=["overloaded", "shutting down", "shard unreachable"],
)
def test_an_abort_that_the_server_refuses_is_sent_until_it_is_run(
    refusal: Callable[[], Fault], side: Side, proxy: ReplicaSet, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=SHORT)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    client = side.client(proxy.uri, event_listeners=[sent])
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        side.do(client[database].coll.update_one, {"_id": 1}, INC, session=session)
        proxy.inject(refusal())
        side.do(session.abort_transaction)
    before = len(sent.named("abortTransaction"))
    # The first one of them is answered as well, so the second one shows that it did not count.
    side.wait_until(lambda: len(sent.named("abortTransaction")) >= before + 2)
    proxy.clear()
    assert _other_writer_waits(side, control[database].coll) == 1
    assert control[database].coll.distinct("n") == [1]


def test_closing_the_client_ends_what_an_interruption_has_left_open(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[database].coll.insert_one({"_id": 1, "n": 0})
    client, held = side.client(proxy.uri), Held("commitTransaction", executed=False)
    coll = client[database].coll

    def body(session: Any) -> Any:
        return coll.update_one({"_id": 1}, INC, session=session)

    with session_of(side, client) as session:
        proxy.inject(held)
        interrupt(side, held.has_it, session.with_transaction, body)
        proxy.clear()
    side.do(client.close)
    assert _other_writer_waits(side, control[database].coll) == 1
    assert control[database].coll.distinct("n") == [1]


async def _updating(coll: Any, name: str) -> None:
    async def body(session: Any) -> None:
        await coll.update_many({}, INC, session=session)

    if name == "with_transaction":
        async with coll.database.client.start_session() as session:
            await session.with_transaction(body)
    elif name == "retry":
        await retry_transaction(coll.database.client)(body)()
    else:
        with override(atomic=True):
            await coll.update_many({}, INC)


CLOSED = [
    ("with_transaction", "update"), ("retry", "update"), ("retry", "commitTransaction"),
    ("atomic", "update"), ("atomic", "commitTransaction"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "command"), CLOSED)
def test_a_coroutine_that_is_closed_unfinished_leaves_none_open(
    name: str, command: str, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    control[database].coll.insert_many([{"_id": 1, "n": 0}, {"_id": 2, "n": 0}])

    async def main() -> None:
        async with pymongo.AsyncMongoClient(proxy.uri, event_listeners=[sent]) as client:
            coll, held = client[database].coll, Held(command, executed=command == "update")
            await coll.delete_many({"_id": 0})
            proxy.inject(held)
            operation: Any = _updating(coll, name)
            waited = operation.send(None)
            while not held.has_it():
                await asyncio.sleep(0.01)
                if waited is None or waited.done():
                    waited = operation.send(None)
            with suppress(RuntimeError, ValueError):  # of pymongo's own cleanup
                operation.close()
            proxy.clear()
            with pymongo.timeout(10):
                write = asyncio.to_thread(control[database].coll.update_many, {}, INC)
                assert (await write).modified_count == 2

    asyncio.run(asyncio.wait_for(main(), 60))
    assert control[database].coll.distinct("n") == [1]
    # Its end is noticed in up to three places.
    assert len(sent.named("abortTransaction")) == 1


KILL = "killSessions"


@pytest.mark.parametrize("fails", ["application", "statement"])
def test_another_router_ends_what_a_lost_one_began(
    fails: str, side: Side, cluster: ShardedCluster, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """No other router knows the transaction, so none could abort it."""
    instrument(timeout_ms=1_500)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    client = side.client(cluster.uri, localThresholdMS=60_000, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, len(cluster.members))
    coll = client[database].coll
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        side.do(coll.update_one, {"_id": 1}, INC, session=session)
        (router,) = [
            each.connection_id for each in sent.started_events if each.command_name == "update"
        ]
        lost = [each.address for each in cluster.members].index(router)
        cluster.inject(Refuse(60), on=lost)
        side.wait_until(lambda: router not in client.nodes)
        if fails == "statement":
            with pytest.raises(pymongo.errors.PyMongoError):
                side.do(coll.update_one, {"_id": 1}, INC, session=session)
        with suppress(pymongo.errors.PyMongoError):
            side.do(session.abort_transaction)
        lsid = session.session_id
    side.wait_until(lambda: sent.named(KILL))
    with pymongo.timeout(10):
        call = (control[database].coll.update_one,)
        call = call if side.runner is None else (asyncio.to_thread, *call)
        assert side.do(*call, {"_id": 1}, INC).modified_count == 1
    side.wait_until(lambda: [each[KILL] for each in sent.named(KILL)] == [[lsid]])
    # It is in no pool of sessions: pymongo would give it to another operation.
    side.do(coll.find_one)
    assert sent.named("find")[-1]["lsid"] != lsid
    cluster.clear()


def test_a_router_that_answers_aborts_it_itself(
    side: Side, cluster: ShardedCluster, database: str, control: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=20_000)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    client = side.client(cluster.uri, localThresholdMS=60_000, event_listeners=[sent])
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        side.do(client[database].coll.update_one, {"_id": 1}, INC, session=session)
        cluster.inject(CutBefore("abortTransaction", times=2))
        side.do(session.abort_transaction)
        cluster.clear()
        # Before the session ends: until then, the client waits for the router to be known again.
        assert _other_writer_waits(side, control[database].coll) == 1
    assert sent.named(KILL) == []


@pytest.mark.each_setup
@pytest.mark.parametrize("lost", ["update", "abortTransaction"])
def test_its_own_router_ends_it_after_another_one_has_answered_the_abort(
    lost: str, side: Side, cluster: ShardedCluster, database: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    """The application keeps its session meanwhile, so the session cannot be killed."""
    writer = control[database].coll

    def left_open(name: str) -> Iterator[Any]:
        """Lose the connection to a transaction's router, so that its abort goes to another one."""
        writer.insert_one({"_id": name, "n": 0})
        sent = SentCommands()
        client = side.client(cluster.uri, localThresholdMS=60_000, event_listeners=[sent])
        side.do(client.admin.command, "ping")
        side.wait_for_members(client, len(cluster.members))
        update = partial(client[database].coll.update_one, {"_id": name}, INC)
        with session_of(side, client) as session:
            side.do(session.start_transaction)
            side.do(update, session=session)
            (router,) = [
                each.connection_id for each in sent.started_events if each.command_name == "update"
            ]
            own = [each.address for each in cluster.members].index(router)
            cluster.inject(CutBefore(lost, times=1), on=own)
            # Its monitor finds the router again only once another one has answered the abort.
            cluster.inject(Fail("hello", times=1_000, code=91), on=own)
            if lost == "update":
                with pytest.raises(pymongo.errors.PyMongoError):
                    side.do(update, session=session)
            side.do(session.abort_transaction)
            # If the router was already lost, the abort is left to the background task.
            last = sent.started_events[-1]
            assert router != last.connection_id or last.command_name == "update"
            cluster.clear()
            yield

    for _ in left_open("plain"):
        with pymongo.timeout(1), pytest.raises(pymongo.errors.PyMongoError):
            _other_writer_waits(side, writer, "plain")
    instrument()
    for _ in left_open("ours"):
        assert _other_writer_waits(side, writer, "ours") == 1


def forgetful() -> Fail:
    """Return a fault that answers an abort as a mongos that has restarted, and does nothing."""
    return Fail("abortTransaction", times=1_000, code=251)


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_router_that_restarts_has_forgotten_what_it_began(
    unanswered: bool, side: Side, cluster: ShardedCluster, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """``unanswered``: the abort that the background task sends is the first that is answered."""
    instrument(timeout_ms=1_500)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    client = side.client(cluster.uri, localThresholdMS=60_000, event_listeners=[sent])
    coll = client[database].coll
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        side.do(coll.update_one, {"_id": 1}, INC, session=session)
        if unanswered:
            cluster.inject(CutBefore("abortTransaction", times=1_000))
            side.do(session.abort_transaction)
            cluster.clear()
            cluster.inject(forgetful())
        else:
            cluster.inject(Reset())
            cluster.inject(forgetful())
            side.do(session.abort_transaction)
        lsid = session.session_id
    side.wait_until(lambda: sent.named(KILL))
    assert [each[KILL] for each in sent.named(KILL)] == [[lsid]]
    cluster.clear()
    assert _other_writer_waits(side, control[database].coll) == 1


def _other_writer_waits(side: Side, coll: Any, document: Any = 1) -> Any:
    """Return how many documents another client's update changes, once it gets the lock."""
    with pymongo.timeout(10):
        call = (coll.update_one,) if side.runner is None else (asyncio.to_thread, coll.update_one)
        return side.do(*call, {"_id": document}, INC).modified_count


def test_what_the_shards_have_aborted_costs_no_further_command(
    side: Side, cluster: ShardedCluster, database: str, control: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    """A mongos then answers the abort as one that has restarted."""
    instrument()
    control[database].coll.insert_one({"_id": 1, "n": 0})
    client = side.client(cluster.uri, event_listeners=[sent])
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        side.do(client[database].coll.update_one, {"_id": 1}, INC, session=session)
        lsid = session.session_id
        cluster.inject(Fail("abortTransaction", code=251))
        side.do(session.abort_transaction)
    # Its session is used again, which it would not be if it was to be killed.
    side.do(client[database].other.find_one)
    assert sent.named("find")[-1]["lsid"] == lsid
