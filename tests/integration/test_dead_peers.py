"""Connections to a host that is silent are closed by the kernel, and what waits goes on.

What swallows packets is a path between two network namespaces, in a process of its own.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import pytest
from pymongo_resilience_instrumentation import driver
from support.child_programs import run
from support.clients import Side, wait_until
from support.misconfigurations import World, certificate, world
from support.severable_path import INSIDE, can_sever
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
    assert "connection closed: nothing received from the server's host for 1 s" in answer["text"]
    assert answer["reasons"] == ["dead_peer"]


@namespaces
@pytest.mark.thorough("seconds have to pass")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_slow_command_on_a_server_that_lives_is_never_touched(kind: str) -> None:
    answer, _ = run("dead_peer", kind, "1", "slow", prefix=INSIDE)
    assert answer["seconds"] >= 3
    assert answer["lost"] is None
    assert answer["reasons"] == []


def sockets(client: Any) -> list[Any]:
    """Of the application's and the monitors' connections."""
    (server,) = client._topology._servers.values()
    connections = [*server.pool.conns, *server._monitor._pool.conns]
    return [each.conn.sock for each in connections]


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
        return len(found) >= 2

    wait_until(complete)
    for each in found:
        assert user_timeout(each) == (expected or 0) * 1000
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
        assert {user_timeout(each) for each in sockets(client)} == {5000}
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
