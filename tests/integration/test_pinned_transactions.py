"""Transactions on a sharded cluster: what is repeated goes to the router that knows them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.clients import SentCommands, Side
from support.servers import cases
from support.telemetry import Instrument
from support.transactions import IN_TRANSACTION

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    Fail,
    Fault,
    Overload,
    ShardedCluster,
)

pytestmark = pytest.mark.oldest

LABELS = ["RetryableError", "SystemOverloadedError"]
TRANSIENT = "TransientTransactionError"
READS = ("aggregate", "find_one")
REJECTIONS: dict[str, Callable[[str], Fault]] = {
    "overload": lambda command: Overload(command, times=3),
    "overload, and transient": lambda command: Fail(
        command, times=3, code=462, labels=[*LABELS, TRANSIENT]
    ),
}


@pytest.fixture
def seeded(control: Any, database: str) -> str:
    control[database].coll.insert_one({"_id": 0, "n": 0})
    return database


def connected(side: Side, cluster: ShardedCluster) -> tuple[Any, SentCommands]:
    """A client that knows all routers, and takes any."""
    sent = SentCommands()
    client = side.client(cluster.uri, localThresholdMS=60_000, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, len(cluster.members))
    return client, sent


@contextlib.contextmanager
def begun(side: Side, client: Any, database: str) -> Iterator[Any]:
    """A session whose transaction has deleted a document, so that a router knows it."""
    session = client.start_session()
    side.do(session.start_transaction)
    side.do(client[database].other.delete_one, {}, session=session)
    try:
        yield session
    finally:
        side.do(session.end_session)


def routers(sent: SentCommands, *commands: str) -> set[Any]:
    return {event.connection_id for event in sent.started_events if event.command_name in commands}


@pytest.mark.parametrize("rejection", REJECTIONS)
@pytest.mark.parametrize("name", cases(IN_TRANSACTION, {"client bulk_write": "8.0"}))
def test_a_rejected_command_stays_on_its_router(
    name: str,
    rejection: str,
    cluster: ShardedCluster,
    side: Side,
    seeded: str,
    control: Any,
    instrument: Instrument,
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client, sent = connected(side, cluster)
    command, call = IN_TRANSACTION[name]
    with begun(side, client, seeded) as session:
        cluster.inject(REJECTIONS[rejection](command))
        call(side, client[seeded], session)
        side.do(session.commit_transaction)
    assert [type(event) for event in telemetry.decisions.events] == [RetryScheduled] * 3
    commands = sent.named(command)
    assert len(commands) == 4
    assert not any("startTransaction" in each for each in commands)
    assert {each["autocommit"] for each in commands} == {False}
    assert len({each["txnNumber"] for each in sent.named("delete", command)}) == 1
    assert len(routers(sent, "delete", command, "commitTransaction")) == 1
    assert list(control[seeded].coll.find()) != [{"_id": 0, "n": 0}] or name in READS


@pytest.mark.parametrize("name", cases(IN_TRANSACTION, {"client bulk_write": "8.0"}))
def test_a_command_that_got_no_connection_stays_on_its_router(
    name: str,
    cluster: ShardedCluster,
    side: Side,
    seeded: str,
    control: Any,
    instrument: Instrument,
) -> None:
    """pymongo takes a handshake that was cut for overload, and unpins."""
    telemetry = instrument(base_backoff_ms=1)
    client, sent = connected(side, cluster)
    command, call = IN_TRANSACTION[name]
    with begun(side, client, seeded) as session:
        drop_connections(side, client)
        cluster.inject(CutAtHandshake())
        call(side, client[seeded], session)
        side.do(session.commit_transaction)
    assert [type(event) for event in telemetry.decisions.events] == [RetryScheduled]
    assert len(routers(sent, "delete", command, "commitTransaction")) == 1
    assert list(control[seeded].coll.find()) != [{"_id": 0, "n": 0}] or name in READS


def drop_connections(side: Side, client: Any) -> None:
    """Of the pools, and not of the monitors."""
    for server in client._topology._servers.values():
        side.do(server.pool.reset)
        side.do(server.pool.ready)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_rejected_end_stays_on_the_router(
    end: str,
    cluster: ShardedCluster,
    side: Side,
    seeded: str,
    control: Any,
    instrument: Instrument,
) -> None:
    """Elsewhere a commit that nobody has begun would abort, and an abort would end nothing."""
    instrument(base_backoff_ms=1)
    client, sent = connected(side, cluster)
    command = end.replace("_t", "T")
    with begun(side, client, seeded) as session:
        side.do(client[seeded].coll.insert_one, {"_id": 1}, session=session)
        cluster.inject(Overload(command, times=3))
        side.do(getattr(session, end))
    assert len(sent.named(command)) == 4
    assert len(routers(sent, "delete", command)) == 1
    # Would wait for the transaction, or fail, while it is open.
    control[seeded].coll.insert_one({"_id": 2})
    assert control[seeded].coll.count_documents({"_id": 1}) == (command == "commitTransaction")


def test_a_commit_whose_reply_was_lost_may_go_elsewhere(
    cluster: ShardedCluster, side: Side, seeded: str, control: Any, instrument: Instrument
) -> None:
    """With its recovery token any router finds out what became of it."""
    instrument(timeout_ms=20_000)
    client, sent = connected(side, cluster)
    with begun(side, client, seeded) as session:
        side.do(client[seeded].coll.insert_one, {"_id": 1}, session=session)
        cluster.inject(CutAfter("commitTransaction"))
        side.do(session.commit_transaction)
    commits = sent.named("commitTransaction")
    assert [each["recoveryToken"] for each in commits] == [{"recoveryShardId": "shard0"}] * 2
    assert len(routers(sent, "commitTransaction")) == 2
    assert control[seeded].coll.count_documents({"_id": 1}) == 1
