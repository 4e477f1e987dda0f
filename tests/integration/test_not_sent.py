"""What was not sent is retried, whatever it is: nothing can have happened twice."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import WriteConcern
from pymongo.errors import AutoReconnect, OperationFailure
from support.clients import SentCommands, Side
from support.telemetry import Instrument, Telemetry
from support.transactions import session_of

import pymongo_resilience
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.events import BreakerOpened, RetryDeclined, RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import Fail, Refuse, ReplicaSet, ShardedCluster

pytestmark = pytest.mark.each_setup

INC = {"$inc": {"n": 1}}
Strike = Callable[[], Any]


def get_more(side: Side, coll: Any, strike: Strike) -> None:
    cursor = coll.find(batch_size=2)
    read = [side.do(cursor.next)["_id"] for _ in range(2)]
    strike()
    assert [*read, *(each["_id"] for each in side.documents(cursor))] == [0, 1, 2, 3]


def command(side: Side, coll: Any, strike: Strike) -> None:
    strike()
    assert side.do(coll.database.command, "dbstats")["ok"] == 1


def server_info(side: Side, coll: Any, strike: Strike) -> None:
    strike()
    assert side.do(coll.database.client.server_info)["ok"] == 1


def drop_database(side: Side, coll: Any, strike: Strike) -> None:
    strike()
    side.do(coll.database.client.drop_database, f"{coll.database.name}_other")


def out(side: Side, coll: Any, strike: Strike) -> None:
    strike()
    side.do(coll.aggregate, [{"$out": "copy"}])
    assert side.do(coll.database.copy.count_documents, {}) == 4


def merge(side: Side, coll: Any, strike: Strike) -> None:
    strike()
    side.do(coll.aggregate, [{"$merge": "merged"}])
    assert side.do(coll.database.merged.count_documents, {}) == 4


def unacknowledged(side: Side, coll: Any, strike: Strike) -> None:
    strike()
    side.do(coll.with_options(write_concern=WriteConcern(w=0)).insert_one, {"_id": "w0"})
    side.wait_until(lambda: side.do(coll.count_documents, {"_id": "w0"}) == 1)


def first_statement(side: Side, coll: Any, strike: Strike) -> None:
    with session_of(side, coll.database.client) as session:
        side.do(session.start_transaction)
        strike()
        side.do(coll.update_one, {"_id": 0}, INC, session=session)
        side.do(session.commit_transaction)
    assert side.do(coll.find_one, {"_id": 0}) == {"_id": 0, "n": 1}


def later_statement(side: Side, coll: Any, strike: Strike) -> None:
    with session_of(side, coll.database.client) as session:
        side.do(session.start_transaction)
        side.do(coll.update_one, {"_id": 0}, INC, session=session)
        strike()
        side.do(coll.update_one, {"_id": 0}, INC, session=session)
        side.do(session.commit_transaction)
    assert side.do(coll.find_one, {"_id": 0}) == {"_id": 0, "n": 2}


def batch_in_a_transaction(side: Side, coll: Any, strike: Strike) -> None:
    with session_of(side, coll.database.client) as session:
        side.do(session.start_transaction)
        cursor = coll.find(batch_size=2, session=session)
        assert side.do(cursor.next)["_id"] == 0
        strike()
        assert len(side.documents(cursor)) == 3
        side.do(session.commit_transaction)


OPERATIONS = {
    each.__name__: each
    for each in (
        get_more, command, server_info, drop_database, out, merge, unacknowledged,
        first_statement, later_statement, batch_in_a_transaction,
    )
}  # fmt: skip


ONE_OF_EACH = [
    "get_more", "server_info", "merge", "unacknowledged", "first_statement", "later_statement",
]  # fmt: skip


def pause(side: Side, client: Any) -> None:
    """As another operation's network error does: until its server was checked."""
    for server in client._topology._servers.values():
        side.do(server.pool.reset)


def filled(side: Side, uri: str, database: str, control: Any, **options: Any) -> Any:
    control[database].coll.insert_many([{"_id": n} for n in range(4)])
    client = side.client(uri, **options)
    coll = client[database].coll
    side.do(coll.find_one)
    return coll


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_paused_pool(
    name: str, side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument()
    coll = filled(side, proxy.uri, database, control)
    OPERATIONS[name](side, coll, lambda: pause(side, coll.database.client))
    # Hardly ever, a monitor's check ends the pause before the operation meets it.
    assert all(isinstance(each, RetryScheduled) for each in telemetry.decisions.events)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_host_name_that_does_not_resolve_for_a_moment(
    name: str, side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    telemetry = instrument()
    coll = filled(side, proxy.uri, database, control)
    OPERATIONS[name](side, coll, lambda: unresolved(side, coll.database.client, monkeypatch))
    events = telemetry.decisions.events
    assert {type(each) for each in events} == {RetryScheduled}
    assert events[0].reason is RetryReason.SOCKET_NOT_AVAILABLE


def unresolved(side: Side, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next connection finds no address."""
    real, left = socket.getaddrinfo, [1]

    def resolve(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.clear()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(*args, **kwargs)

    for server in client._topology._servers.values():
        side.do(server.pool.reset)
        side.do(server.pool.ready)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)


# A breaker lets the batches of an open cursor pass.
@pytest.mark.parametrize("name", ONE_OF_EACH[1:])
def test_an_open_breaker(
    name: str, side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument,
    defaults: dict[str, Any],
) -> None:  # fmt: skip
    telemetry = instrument(
        circuit_breaker="always", circuit_breaker_minimum_calls=4, circuit_breaker_open_s=0.2
    )
    coll = filled(side, proxy.uri, database, control)

    def strike() -> None:
        proxy.inject(Fail("delete", times=100, code=6))
        while not any(isinstance(each, BreakerOpened) for each in telemetry.decisions.events):
            with pytest.raises(OperationFailure):
                side.do(coll.delete_many, {})
        proxy.clear()

    if defaults:
        OPERATIONS[name](side, coll, strike)
    else:
        # Without a deadline nothing waits for the breaker's probe, not even a read.
        with pytest.raises(AutoReconnect) as caught:
            OPERATIONS[name](side, coll, strike)
        assert vars(caught.value)["retry_rule"] is Rule.BREAKER
        assert "circuit breaker" in str(caught.value)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_nothing_is_sent_twice(
    name: str, side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    """Nor more often than by plain pymongo without a failure."""

    def commands(strike: Callable[[Any], None]) -> list[str]:
        sent = SentCommands()
        control[database].drop_collection("coll")
        coll = filled(side, proxy.uri, database, control, event_listeners=[sent])
        OPERATIONS[name](side, coll, lambda: strike(coll.database.client))
        return [each.command_name for each in sent.started_events if each.command_name != "count"]

    plain = commands(lambda client: None)
    instrument()
    assert commands(lambda client: pause(side, client)) == plain


@pytest.mark.parametrize("name", ["later_statement", "batch_in_a_transaction"])
def test_a_transaction_stays_on_its_router(
    name: str, side: Side, cluster: ShardedCluster, database: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    sent = SentCommands()
    coll = filled(
        side, cluster.uri, database, control, localThresholdMS=60_000, event_listeners=[sent]
    )
    client = coll.database.client
    side.wait_for_members(client, len(cluster.members))
    sent.started_events.clear()
    OPERATIONS[name](side, coll, lambda: pause(side, client))
    routers = {each.connection_id for each in sent.started_events if "autocommit" in each.command}
    assert len(routers) == 1


def test_a_transaction_whose_router_is_gone_begins_anew_on_another(
    side: Side, cluster: ShardedCluster, database: str, control: Any, instrument: Instrument
) -> None:
    """As soon as with plain pymongo, but for a second in which the router may come back."""
    telemetry = instrument()
    coll = filled(side, cluster.uri, database, control, localThresholdMS=60_000)
    client = coll.database.client
    side.wait_for_members(client, len(cluster.members))
    runs: list[Any] = []

    def lose_router(session: Any) -> None:
        (on,) = [
            index
            for index, each in enumerate(cluster.members)
            if each.address == session._pinned_address
        ]
        cluster.inject(Refuse(60), on=on)

    async def async_body(session: Any) -> None:
        runs.append(session)
        await coll.update_one({"_id": 0}, INC, session=session)
        if len(runs) == 1:
            lose_router(session)
        await coll.update_one({"_id": 0}, INC, session=session)

    def body(session: Any) -> None:
        runs.append(session)
        coll.update_one({"_id": 0}, INC, session=session)
        if len(runs) == 1:
            lose_router(session)
        coll.update_one({"_id": 0}, INC, session=session)

    with session_of(side, client) as session:
        side.do(session.with_transaction, body if side.runner is None else async_body)
    assert len(runs) == 2
    assert side.do(coll.find_one, {"_id": 0}) == {"_id": 0, "n": 2}
    declined = [e for e in telemetry.decisions.events if isinstance(e, RetryDeclined)]
    assert {each.rule for each in declined if each.operation == "update"} <= {Rule.NEVER_RETRIED}


def test_plain_pymongo_fails_of_a_paused_pool(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    """What the tests above are better than."""
    instrument()
    coll = filled(side, proxy.uri, database, control)
    pymongo_resilience.uninstrument()
    with pytest.raises(AutoReconnect, match="paused"):
        later_statement(side, coll, lambda: pause(side, coll.database.client))


def test_the_telemetry_of_a_statement(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    telemetry: Telemetry = instrument()
    coll = filled(side, proxy.uri, database, control)
    for _ in range(10):
        first_statement(side, coll, lambda: pause(side, coll.database.client))
        if telemetry.shows_reason("socket_not_available"):
            return
        # A monitor's check has ended the pause before the statement met it.
        control[database].coll.replace_one({"_id": 0}, {})
    pytest.fail("no statement met a paused pool")
