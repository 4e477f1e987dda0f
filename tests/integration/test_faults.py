"""The test bed's own guarantees: what each fault does, seen by plain pymongo on a real server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson import Binary, Int64
from bson.binary import UUID_SUBTYPE
from conftest import wait_until
from pymongo import InsertOne, MongoClient, UpdateOne, WriteConcern
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure
from pymongo.monitoring import CommandListener, CommandStartedEvent
from pymongo_resilience_instrumentation.testbed import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    EmbeddedServer,
    NotPrimary,
    Overload,
    Refuse,
    ReplicaSet,
    Slow,
    wire,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo.collection import Collection

IDLE_MS = 50


@pytest.fixture
def client(proxy: ReplicaSet) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](proxy.uri, maxIdleTimeMS=IDLE_MS) as connected:
        yield connected


@pytest.fixture
def orders(
    client: MongoClient[dict[str, Any]], request: pytest.FixtureRequest
) -> Collection[dict[str, Any]]:
    collection = client.testbed[request.node.name]
    collection.insert_one({"warm": True})
    return collection


def stored(server: EmbeddedServer, orders: Collection[dict[str, Any]]) -> int:
    """Documents of a test, without the warming one, read past the proxy."""
    with MongoClient[dict[str, Any]](server.uri) as direct:
        return direct.testbed[orders.name].count_documents({"warm": {"$exists": False}})


def let_connections_age() -> None:
    """Make the pool open a new connection for the next operation."""
    time.sleep(2 * IDLE_MS / 1000)


def test_a_client_sees_the_proxy_and_not_the_server(
    proxy: ReplicaSet, client: MongoClient[dict[str, Any]]
) -> None:
    hello = client.admin.command("hello")
    address = "{}:{}".format(*proxy.address)
    assert (hello["hosts"], hello["me"], hello["primary"]) == ([address], address, address)
    assert hello["setName"] == "rs0"
    assert hello["topologyVersion"]["counter"] == 1
    assert client.nodes == {proxy.address}


def test_cut_before_leaves_no_trace_of_the_command(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    fault = CutBefore("insert", times=2)
    proxy.inject(fault)
    with pytest.raises(AutoReconnect):
        orders.insert_one({})
    assert fault.injected == 2
    assert stored(server, orders) == 0


def test_cut_after_leaves_the_command_executed_once(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    fault = CutAfter("insert", times=2)
    proxy.inject(fault)
    with pytest.raises(AutoReconnect):
        orders.insert_one({})
    assert fault.injected == 2
    assert stored(server, orders) == 1


def test_a_cut_aims_at_the_command_it_names(
    proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    fault = CutAfter("update")
    proxy.inject(fault)
    result = orders.bulk_write(
        [InsertOne({}), UpdateOne({"_id": 1}, {"$inc": {"n": 1}}, upsert=True), InsertOne({})]
    )
    assert (result.inserted_count, result.upserted_count, fault.injected) == (2, 1, 1)
    assert (orders.find_one({"_id": 1}) or {})["n"] == 1


RETRYABLE_WRITES: dict[str, dict[str, Any]] = {
    "insert": {"documents": [{}]},
    "update": {"updates": [{"q": {"counter": True}, "u": {"$inc": {"n": 1}}, "upsert": True}]},
    "findAndModify": {"query": {"counter": True}, "update": {"$inc": {"n": 1}}, "upsert": True},
}


@pytest.mark.parametrize("command", RETRYABLE_WRITES)
def test_a_repeat_with_another_max_time_has_no_second_effect(
    server: EmbeddedServer, client: MongoClient[dict[str, Any]], database: str, command: str
) -> None:
    """The control on which every ledger stands: the server knows a repeated txnNumber."""
    with client.start_session() as session:
        for limit in (5000, 4000):
            client[database].command(
                command,
                "repeats",
                **RETRYABLE_WRITES[command],
                txnNumber=Int64(1),
                maxTimeMS=limit,
                session=session,
            )
    with MongoClient[dict[str, Any]](server.uri) as direct:
        (document,) = direct[database].repeats.find()
        assert document.get("n", 1) == 1


def test_a_repeat_beside_the_first_has_no_second_effect(
    control: MongoClient[dict[str, Any]], proxy: ReplicaSet, database: str
) -> None:
    session = {"id": Binary(uuid.uuid4().bytes, UUID_SUBTYPE)}
    rounds, attempts = 20, 4

    def attempt(number: int) -> None:
        body: wire.Document = {"insert": "beside", "documents": [{}], "$db": database}
        body |= {"lsid": session, "txnNumber": Int64(number)}
        with socket.create_connection(proxy.address, timeout=10.0) as connection:
            connection.sendall(wire.command(body).raw)
            assert connection.recv(1)

    with ThreadPoolExecutor(attempts) as pool:
        for number in range(rounds):
            list(pool.map(attempt, [number] * attempts))
    assert control[database].beside.count_documents({}) == rounds


@pytest.mark.parametrize("times", [1, 2])
def test_a_cut_handshake_is_the_applications(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]], times: int
) -> None:
    let_connections_age()
    fault = CutAtHandshake(times)
    proxy.inject(fault)
    orders.insert_one({})
    assert fault.injected == times
    assert stored(server, orders) == 1


def test_not_primary_carries_the_label_and_executes_nothing(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    proxy.inject(NotPrimary("insert", times=2))
    with pytest.raises(NotPrimaryError) as raised:
        orders.insert_one({})
    assert raised.value.has_error_label("RetryableWriteError")
    assert stored(server, orders) == 0


def test_a_step_down_is_a_gap_without_a_primary(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    gap = 0.7
    fault = Election(gap)
    proxy.inject(fault)
    started = time.monotonic()
    orders.insert_one({})
    assert time.monotonic() - started >= gap
    assert fault.injected == 1
    assert stored(server, orders) == 1


def test_a_secondary_serves_reads_that_allow_it(
    server: EmbeddedServer, orders: Collection[dict[str, Any]]
) -> None:
    with (
        ReplicaSet(server.address, members=2) as replica_set,
        MongoClient[dict[str, Any]](
            *replica_set.members[1].address, directConnection=True
        ) as direct,
    ):
        with pytest.raises(NotPrimaryError):
            direct.testbed.command("insert", orders.name, documents=[{}])
        assert direct.testbed[orders.name].find_one({"warm": True}) is not None


def test_overload_carries_both_labels_and_its_base_back_off(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    proxy.inject(Overload("insert", times=3, base_backoff=0.001))
    with pytest.raises(OperationFailure) as raised:
        orders.insert_one({})
    assert raised.value.code == 462
    assert raised.value.has_error_label("SystemOverloadedError")
    assert raised.value.has_error_label("RetryableError")
    assert (raised.value.details or {})["baseBackoffMS"] == 1
    assert stored(server, orders) == 0


def test_a_slow_server_answers_late_until_cleared(
    proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    proxy.inject(Slow(0.2))
    started = time.monotonic()
    orders.find_one()
    assert time.monotonic() - started >= 0.2
    proxy.clear()
    started = time.monotonic()
    orders.find_one()
    assert time.monotonic() - started < 0.2


def test_a_refusing_member_comes_back(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    fault = Refuse(0.3)
    proxy.inject(fault)
    orders.insert_one({})
    assert fault.injected == 1
    assert stored(server, orders) == 1


def test_cursors_and_large_batches_pass_unchanged(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    documents = [{"n": n, "text": "x" * 1000} for n in range(500)]
    orders.insert_many(documents)
    found = orders.find({"n": {"$exists": True}}, batch_size=100).sort("n").to_list()
    assert found == documents


def test_an_unacknowledged_write_waits_for_no_reply(
    server: EmbeddedServer, proxy: ReplicaSet, orders: Collection[dict[str, Any]]
) -> None:
    unacknowledged = orders.with_options(write_concern=WriteConcern(w=0))
    unacknowledged.insert_one({})
    wait_until(lambda: stored(server, orders) == 1)


class Commands(CommandListener):
    """The names of the commands a client sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


def test_pymongo_loses_writes_of_a_mixed_bulk_behind_a_cut_handshake(
    server: EmbeddedServer, proxy: ReplicaSet
) -> None:
    """The defect of pymongo 4.20.0 that the demonstration shows; fails when it is mended."""
    sent = Commands()
    with MongoClient[dict[str, Any]](
        proxy.uri, maxIdleTimeMS=IDLE_MS, event_listeners=[sent]
    ) as client:
        orders = client.testbed.mixed_bulk
        orders.insert_one({"warm": True})
        let_connections_age()
        sent.names.clear()
        proxy.inject(CutAtHandshake())
        orders.bulk_write(
            [InsertOne({}), UpdateOne({"warm": True}, {"$set": {"n": 1}}), InsertOne({})]
        )
        assert sent.names == ["insert"]
        assert stored(server, orders) == 1


def test_messages_survive_a_changed_body() -> None:
    body = {"insert": "orders", "$db": "demo", "maxTimeMS": 5}
    message = wire.command(body, request_id=7)
    sequence = wire.parse(_with_sequence(message.raw))
    assert sequence.sequences == (b"\x0e\0\0\0documents\0",)
    changed = wire.parse(sequence.with_body({"insert": "orders", "$db": "demo"}).raw)
    assert changed.body == {"insert": "orders", "$db": "demo"}
    assert changed.sequences == sequence.sequences
    assert changed.request_id == 7


def test_a_checksum_is_dropped_with_the_bytes_it_covered() -> None:
    raw = bytearray(wire.command({"ping": 1, "$db": "admin"}).raw + b"\1\2\3\4")
    raw[0:4] = len(raw).to_bytes(4, "little")
    raw[16] |= wire.CHECKSUM_PRESENT
    message = wire.parse(bytes(raw))
    assert message.body == {"ping": 1, "$db": "admin"}
    assert message.with_body({"ping": 1}).flags & wire.CHECKSUM_PRESENT == 0


@pytest.mark.parametrize("raw", [b"", b"\x10\0\0\0", wire.command({"ping": 1}).raw[:-3]])
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.parse(raw)


def _with_sequence(raw: bytes) -> bytes:
    longer = bytearray(raw + b"\1" + b"\x0e\0\0\0documents\0")
    longer[0:4] = len(longer).to_bytes(4, "little")
    return bytes(longer)


def test_the_server_ends_and_cleans_up_when_its_parent_is_killed() -> None:
    program = """
        import sys, time
        from pymongo_resilience_instrumentation.testbed import EmbeddedServer
        server = EmbeddedServer()
        server.start()
        print(server.address[1], server._directory, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        port, directory = parent.stdout.readline().split()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not _answers(int(port)))
    wait_until(lambda: not Path(directory).exists())


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    return True
