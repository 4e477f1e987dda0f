"""Transactions on a sharded cluster: what is repeated goes to the router that knows them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import monitoring
from pymongo.errors import OperationFailure
from pymongo.server_description import ServerDescription
from pymongo_resilience_instrumentation.failures.reasons import RELAYED
from support.clients import SentCommands, Side
from support.servers import cases
from support.telemetry import Instrument
from support.transactions import IN_TRANSACTION, run, session_of

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


@pytest.mark.parametrize("code", sorted(RELAYED))
def test_a_shard_that_a_router_could_not_reach_begins_the_transaction_anew(
    code: int, cluster: ShardedCluster, side: Side, seeded: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    """Routers leave the label out."""
    instrument()
    client, sent = connected(side, cluster)
    coll = client[seeded].coll
    cluster.inject(Fail("update", code=code, labels=[]))
    with session_of(side, client) as session:
        run(side, session, lambda s: coll.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=s))
    assert control[seeded].coll.find_one({"_id": 0}) == {"_id": 0, "n": 1}
    assert len(sent.named("update")) == 2


@pytest.mark.parametrize("name", ["find", "update"])
@pytest.mark.parametrize("code", sorted(RELAYED))
def test_outside_of_a_transaction_the_command_is_sent_again(
    code: int, name: str, cluster: ShardedCluster, side: Side, seeded: str, instrument: Instrument
) -> None:
    instrument()
    client, sent = connected(side, cluster)
    cluster.inject(Fail(name, code=code, labels=[]))
    coll = client[seeded].coll
    if name == "find":
        side.do(coll.find_one)
    else:
        side.do(coll.update_one, {"_id": 0}, {"$inc": {"n": 1}})
    assert len(sent.named(name)) == 2
    assert len({each.get("txnNumber") for each in sent.named(name)}) == 1


class LosesDescriptions(monitoring.ConnectionPoolListener):
    """Between the selection of a router and the checkout, its description becomes Unknown, as it
    does for another operation's lost connection."""

    client: Any = None

    def connection_check_out_started(self, event: Any) -> None:
        if self.client is not None:
            server = self.client._topology._servers[event.address]
            server.description = ServerDescription(event.address)

    def __getattribute__(self, name: str) -> Any:
        known = name.startswith("__") or name in {"client", "connection_check_out_started"}
        return object.__getattribute__(self, name) if known else lambda event: None


def test_it_stays_on_its_router_although_that_was_unknown_at_the_checkout(
    cluster: ShardedCluster, side: Side, seeded: str, instrument: Instrument
) -> None:
    """Plain pymongo may send each statement to another router then."""
    instrument()
    listener, sent = LosesDescriptions(), SentCommands()
    client = side.client(cluster.uri, localThresholdMS=60_000, event_listeners=[sent, listener])
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, len(cluster.members))
    session = client.start_session()
    side.do(session.start_transaction)
    listener.client = client
    side.do(client[seeded].coll.update_one, {"_id": 0}, {"$inc": {"n": 1}}, session=session)
    listener.client = None
    pinned = session._pinned_address
    side.do(session.abort_transaction)
    side.do(session.end_session)
    assert pinned == sent.started_events[-1].connection_id


UNRECOVERABLE = 50940
"""The code of a router that does not know the transaction and got no recovery token."""


def test_a_commit_whose_reply_was_lost_is_unknown_to_another_router(
    cluster: ShardedCluster, side: Side, seeded: str, control: Any, instrument: Instrument
) -> None:
    """It has been committed: the error must not say that it was not."""
    instrument()
    client, sent = connected(side, cluster)
    session = client.start_session()
    side.do(session.start_transaction)
    coll = client[seeded].coll
    side.do(coll.update_one, {"_id": 0}, {"$inc": {"n": 1}}, session=session)
    cluster.inject(CutAfter("commitTransaction"))
    cluster.inject(Fail("commitTransaction", code=UNRECOVERABLE))
    with pytest.raises(OperationFailure, match=r"unknown whether .* was committed") as caught:
        side.do(session.commit_transaction)
    assert caught.value.code == UNRECOVERABLE
    assert caught.value.has_error_label("UnknownTransactionCommitResult")
    assert control[seeded].coll.find_one({"_id": 0}) == {"_id": 0, "n": 1}
    side.do(session.commit_transaction)
    side.do(session.end_session)
    assert len(sent.named("commitTransaction")) == 3


def test_with_transaction_asks_again(
    cluster: ShardedCluster, side: Side, seeded: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    client, sent = connected(side, cluster)
    coll = client[seeded].coll
    cluster.inject(CutAfter("commitTransaction"))
    cluster.inject(Fail("commitTransaction", code=UNRECOVERABLE))
    with session_of(side, client) as session:
        run(side, session, lambda s: coll.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=s))
    assert control[seeded].coll.find_one({"_id": 0}) == {"_id": 0, "n": 1}
    assert len(sent.named("update")) == 1


def test_a_first_attempt_to_commit_that_no_router_knows_is_no_commit(
    cluster: ShardedCluster, side: Side, seeded: str, instrument: Instrument
) -> None:
    instrument()
    client, _ = connected(side, cluster)
    with begun(side, client, seeded) as session:
        cluster.inject(Fail("commitTransaction", code=UNRECOVERABLE))
        with pytest.raises(OperationFailure) as caught:
            side.do(session.commit_transaction)
    assert not caught.value.has_error_label("UnknownTransactionCommitResult")
