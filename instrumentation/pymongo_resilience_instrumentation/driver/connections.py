"""The socket under one of pymongo's connections."""

from __future__ import annotations

import socket
import sys
from typing import Any

CAN_WAKE = sys.platform not in {"win32", "cygwin", "emscripten", "wasi"}
"""Whether a read ends when another thread shuts its socket down."""


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
