"""Connections to a host that is silent are closed by the kernel, and what waits goes on.

What swallows packets is a path between two network namespaces, in a process of its own.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from functools import partial
from typing import Any

import pytest
from pymongo_resilience_instrumentation import driver
from support.child_programs import run
from support.clients import SentCommands, Side, wait_until
from support.misconfigurations import World, certificate, world
from support.severable_path import INSIDE, can_sever
from support.slow_sockets import trickling
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.testbed import EmbeddedServer

__all__ = ["world"]
pytestmark = pytest.mark.each_setup
linux = pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
namespaces = pytest.mark.skipif(
    not can_sever(), reason="needs unshare and ip, and leave to make network namespaces"
)
SOON = 10.0
"""Seconds, of a deadline of twenty."""


@namespaces
@pytest.mark.oldest
@pytest.mark.parametrize("kind", ["sync", "async", "uvloop"])
@pytest.mark.parametrize("case", ["insert", "waiting"])
def test_a_request_into_a_dead_path_is_repeated_on_a_new_connection(
    kind: str, case: str, defaults: dict[str, Any]
) -> None:
    setup = "with a timeout" if defaults else "bare"
    answer, _ = run("dead_peer", kind, "1", case, setup, prefix=INSIDE)
    assert answer["seconds"] < SOON
    assert answer["lost"] is None
    assert answer["reasons"] == answer["shown"] == answer["counted"] == ["dead_peer"]
    assert answer["lost connections"] == {"dead_peer": 1}
    assert answer["documents"] == 2
    assert answer["status"] == 1


@namespaces
@pytest.mark.thorough("seconds have to pass")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_one_that_may_not_be_repeated_ends_in_an_error_that_names_the_cause(kind: str) -> None:
    answer, _ = run("dead_peer", kind, "1", "update_many", prefix=INSIDE)
    assert answer["seconds"] < SOON
    assert answer["lost"] is True
    text = "connection closed: the server's host has acknowledged no packet for 1 s"
    assert text in answer["text"]
    assert answer["reasons"] == ["dead_peer"]


@namespaces
@pytest.mark.thorough("seconds have to pass")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_slow_command_on_a_server_that_lives_is_never_touched(kind: str) -> None:
    answer, _ = run("dead_peer", kind, "1", "slow", prefix=INSIDE)
    assert answer["seconds"] >= 3
    assert answer["lost"] is None
    assert answer["reasons"] == []


def sockets(client: Any) -> tuple[list[Any], list[Any]]:
    """Of the application's connections, and of the monitors'."""
    (server,) = client._topology._servers.values()
    ours, monitors = ([each.conn.sock for each in pool.conns] for pool in (
        server.pool, server._monitor._pool
    ))  # fmt: skip
    return ours, monitors


def user_timeout(sock: Any) -> int:
    return int(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))


@linux
@pytest.mark.oldest
@pytest.mark.parametrize(
    ("options", "expected"), [({}, 5), ({"dead_peer_s": 30}, 30), ({"dead_peer_s": 0}, None)]
)
def test_every_connection_of_a_new_client_is_watched(
    side: Side,
    server: EmbeddedServer,
    instrument: Instrument,
    options: dict[str, Any],
    expected: int | None,
) -> None:
    instrument(**options)
    client = side.do(side.client, server.uri)
    side.do(client.admin.command, "ping")
    found: list[Any] = []

    def complete() -> bool:  # a check that is in progress has its connection
        side.do(lambda: asyncio.sleep(0.01) if side.runner is not None else None)
        found[:] = sockets(client)
        return all(found)

    wait_until(complete)
    ours, monitors = found
    # It would also end connections to a host that answers, but has no room for a large write.
    assert {user_timeout(each) for each in ours} == {0}
    assert {user_timeout(each) for each in monitors} == {(expected or 0) * 1000}
    for each in [*ours, *monitors]:
        idle = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert (idle < expected) if expected else idle == 120
        assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert pymongo_resilience.status(client).dead_peer_s == expected
    pymongo_resilience.uninstrument()
    assert pymongo_resilience.status(client).dead_peer_s is None


@linux
def test_connections_with_tls_are_watched(side: Side, world: World, instrument: Instrument) -> None:
    instrument()
    with certificate()(world) as uri:
        client = side.do(side.client, uri)
        side.do(client.admin.command, "ping")
        ours, monitors = sockets(client)
        for each in [*ours, *monitors]:
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
        side.do(client.close)


WRITES: dict[str, Any] = {
    "insert_one": lambda coll, big: (coll.insert_one, {"big": big}),
    "update_many": lambda coll, big: (coll.update_many, {"n": 1}, {"$set": {"big": big}}),
    "command": lambda coll, big: (
        partial(coll.database.command, "insert", coll.name, documents=[{"big": big}]),
    ),
}  # fmt: skip


@linux
@pytest.mark.oldest
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("which", ["plain", "instrumented"])
def test_a_server_that_stops_reading_is_not_dead(
    which: str, write: str, side: Side, server: EmbeddedServer, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """Its kernel answers each probe. For longer than ``dead_peer_s``, no connection is lost, and
    nothing is sent twice."""
    control[database].coll.insert_one({"n": 1})
    if which == "instrumented":
        instrument(dead_peer_s=1)
    with trickling(server.address) as path:
        client = side.do(side.client, path.uri, event_listeners=[sent])
        side.do(client.admin.command, "ping")
        sent.started_events.clear()
        path.hears.clear()
        threading.Timer(2.5, path.hears.set).start()
        # More than the send buffer takes.
        side.do(*WRITES[write](client[database].coll, "x" * 6 * 1024 * 1024))
        names = [event.command_name for event in sent.started_events]
        assert names in (["insert"], ["update"])
        (pool,) = driver.connections.open_pools(client).values()
        assert driver.connections.lost(pool) == {}
        side.do(client.close)


def test_where_the_system_cannot_do_it_the_status_says_so(
    side: Side, server: EmbeddedServer, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.connections, "can_watch", lambda: False)
    instrument()
    client = side.do(side.client, server.uri)
    side.do(client.admin.command, "ping")
    status = pymongo_resilience.status(client)
    assert status.dead_peer_s is None
    assert status.config is not None
    assert status.config.dead_peer_s == 5
