"""The socket under one of pymongo's connections."""

from __future__ import annotations

import errno
import importlib
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = "_raise_connection_failure"
"""A connection's method: called with what ended it, before its socket is closed."""
CAN_WAKE = sys.platform not in {"win32", "cygwin", "emscripten", "wasi"}
"""Whether a read ends when another thread shuts its socket down."""
CAN_WATCH = sys.platform in {"linux", "darwin"}
"""Whether the kernel closes connections whose peer shows no sign of life."""
_DROP_TIME = 0x80
"""macOS: TCP_RXT_CONNDROPTIME, which Python does not name."""
_CLOSED, _STATE, _SINCE_ACKNOWLEDGED, _INFO = 7, 0, 20, struct.Struct("8B24I")
"""Linux: of a TCP_INFO, the state and the milliseconds since the peer's last acknowledgement."""


def connection_classes() -> Iterator[type]:
    for half, prefix in (("synchronous", ""), ("asynchronous", "Async")):
        yield getattr(importlib.import_module(f"pymongo.{half}.pool"), f"{prefix}Connection")


def watch_peer(interface: Any, seconds: int) -> None:
    """Have the kernel close the connection ``seconds`` after the peer's last sign of life: what was
    sent stays unacknowledged, or probes do. A peer that lives and is slow acknowledges both.

    Raises OSError where the socket is none of TCP, or the kernel lacks an option.
    """
    sock, tcp = interface.sock, socket.IPPROTO_TCP
    if sock.family == socket.AF_UNIX:
        return
    idle, interval = max(1, seconds * 2 // 5), max(1, seconds // 5)
    if sys.platform == "darwin":
        sock.setsockopt(tcp, socket.TCP_KEEPALIVE, idle)
        sock.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(tcp, _DROP_TIME, seconds)
    else:
        sock.setsockopt(tcp, socket.TCP_KEEPIDLE, idle)
        sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, seconds * 1000)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, interval)


def peer_was_silent(connection: Any, error: BaseException, seconds: int) -> bool:
    """Whether ``error`` ended the connection because its peer showed no sign of life.

    Before the socket is closed: pymongo's read takes the kernel's error for one of its own looks at
    the clock, and then finds the connection closed.
    """
    if not isinstance(error, OSError):
        return False
    if error.errno == errno.ETIMEDOUT:
        return True
    try:
        found = connection.conn.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        facts = _INFO.unpack(found)
    except (OSError, AttributeError, struct.error):  # closed, no TCP, or no Linux
        return False
    return bool(facts[_STATE] == _CLOSED and facts[_SINCE_ACKNOWLEDGED] >= seconds * 1000)


def shut_down(connection: Any) -> None:
    """End what waits for a reply on the connection as if the server had closed it.

    Takes no lock and closes no descriptor, so it may run in a weak reference's callback and in any
    thread. Of a connection that is closed already: nothing.
    """
    made = connection.conn.conn
    try:
        if isinstance(made, tuple):  # of asyncio: the transport and its protocol
            transport, protocol = made
            protocol._closed.get_loop().call_soon_threadsafe(transport.abort)
        elif isinstance(made, socket.socket):
            # Not the method of a TLS socket, which would have the reader go on without TLS.
            socket.socket.shutdown(made, socket.SHUT_RDWR)
        else:
            made.sock_shutdown(socket.SHUT_RDWR)  # PyOpenSSL's
    except (OSError, RuntimeError):  # closed, or its loop is
        return
