"""The options of a socket whose peer is watched, on systems that this is not run on."""

from __future__ import annotations

import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo_resilience_instrumentation.driver import connections

NAMES = {"TCP_KEEPALIVE": 0x10, "TCP_KEEPINTVL": 0x101, "TCP_KEEPCNT": 0x102}
"""What Python names on macOS, with the numbers of its <netinet/tcp.h>."""
TCP_RXT_CONNDROPTIME = 0x80
OF_LINUX = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_INFO")


class Socket:
    """Keeps what is set, and refuses what it is told to."""

    def __init__(self, refused: int | None = None) -> None:
        self.family = socket.AF_INET
        self.options: dict[int, int] = {}
        self._refused = refused

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert level == socket.IPPROTO_TCP
        if option == self._refused:
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        self.options[option] = value

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "sys", SimpleNamespace(platform="darwin"))
    named = {name: value for name, value in vars(socket).items() if name not in OF_LINUX}
    monkeypatch.setattr(connections, "socket", SimpleNamespace(**{**named, **NAMES}))
    monkeypatch.setattr(connections, "can_watch", connections.can_watch.__wrapped__)


def faked(monkeypatch: pytest.MonkeyPatch, refused: int | None) -> None:
    monkeypatch.setattr(connections.socket, "socket", lambda: Socket(refused))


@pytest.mark.parametrize(("seconds", "idle", "interval"), [(5, 2, 1), (1, 1, 1), (30, 12, 6)])
@pytest.mark.usefixtures("macos")
def test_on_macos_what_is_unacknowledged_and_what_is_idle_ends_in_that_time(
    seconds: int, idle: int, interval: int
) -> None:
    sock = Socket()
    connections.watch_peer(SimpleNamespace(sock=sock), seconds, is_monitor_pool=False)
    assert sock.options == {
        TCP_RXT_CONNDROPTIME: seconds,
        NAMES["TCP_KEEPALIVE"]: idle,
        NAMES["TCP_KEEPINTVL"]: interval,
        NAMES["TCP_KEEPCNT"]: 3,
    }


@pytest.mark.parametrize("refused", [None, *NAMES.values(), TCP_RXT_CONNDROPTIME])
@pytest.mark.usefixtures("macos")
def test_a_kernel_that_lacks_one_of_them_watches_nothing(
    monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    faked(monkeypatch, refused)
    assert connections.can_watch() == (refused is None)


def test_a_python_that_does_not_name_them_watches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {name: value for name, value in vars(socket).items() if name not in OF_LINUX}
    monkeypatch.setattr(connections, "socket", SimpleNamespace(**named))
    faked(monkeypatch, None)
    assert not connections.can_watch.__wrapped__()


@pytest.mark.usefixtures("macos")
def test_on_macos_the_error_alone_tells_that_a_peer_was_silent() -> None:
    connection = SimpleNamespace(conn=SimpleNamespace(sock=Socket()))
    assert connections.peer_was_silent(connection, TimeoutError(errno.ETIMEDOUT, ""), 5)
    assert not connections.peer_was_silent(connection, ConnectionResetError(), 5)
    assert connections.is_silent_for(connection, 60), "nothing tells: a check has to"


def test_a_socket_of_the_file_system_has_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sock: Any = Socket()
    sock.family = socket.AF_UNIX
    connections.watch_peer(SimpleNamespace(sock=sock), 5, is_monitor_pool=True)
    assert sock.options == {}


SECOND = 1000
FACTS = {
    "acknowledged": ({}, False),
    "idle for long": ({"acknowledged": 60}, False),
    "sent just now": ({"unacknowledged": 1, "acknowledged": 60}, False),
    "sent again and again": ({"unacknowledged": 1, "retransmits": 4, "acknowledged": 6}, True),
    "one packet lost": ({"unacknowledged": 1, "retransmits": 1, "acknowledged": 6}, False),
    "sent again for a moment": ({"unacknowledged": 1, "retransmits": 4, "acknowledged": 4}, False),
    "no room, probes answered": ({"probes": 0, "acknowledged": 9}, False),
    "no room, one probe under way": ({"probes": 1, "acknowledged": 9}, False),
    "no room, no answer": ({"probes": 4, "acknowledged": 9}, True),
}
"""Of TCP_INFO, seconds since the last acknowledgement; and whether the peer is gone after five."""


@pytest.mark.parametrize("name", FACTS)
def test_a_peer_is_gone_if_what_was_sent_again_stays_unacknowledged(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, gone = FACTS[name]
    facts = [0] * 32
    facts[2], facts[3] = given.get("retransmits", 0), given.get("probes", 0)
    facts[12], facts[20] = given.get("unacknowledged", 0), given.get("acknowledged", 0) * SECOND
    monkeypatch.setattr(connections, "_facts", lambda _: tuple(facts))
    assert connections.peer_is_gone(object(), 5) is gone


def test_where_the_system_tells_nothing_no_peer_is_gone() -> None:
    connection = SimpleNamespace(conn=SimpleNamespace(sock=Socket()))
    assert not connections.peer_is_gone(connection, 5)
