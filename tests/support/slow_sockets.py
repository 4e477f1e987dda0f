"""A server whose bytes arrive one by one, or that does not take any: for timeouts of sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

EVERY = 0.02
"""Seconds between two bytes; a single read never waits longer."""
SMALL = 4096
"""Bytes of the buffers, so that they are soon full."""


class Trickle:
    """Stands in front of a server. Thread-safe."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self._open: list[socket.socket] = [self._listening]
        self.slow = threading.Event()
        """Replies come byte by byte."""
        self.hears = threading.Event()
        """Requests are read."""
        self.hears.set()

    @property
    def uri(self) -> str:
        return "mongodb://{}:{}/?directConnection=true".format(*self._listening.getsockname())

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._open += client, server
                for function in (self._ask, self._answer):
                    threading.Thread(target=function, args=(client, server), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while self.hears.wait() and (data := client.recv(SMALL)):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(SMALL):
                for start in range(len(data)):
                    if not self.slow.is_set():
                        client.sendall(data[start:])
                        break
                    client.sendall(data[start : start + 1])
                    time.sleep(EVERY)
            client.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.slow.clear()
        self.hears.set()
        for each in self._open:
            # Wakes who waits for it.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextlib.contextmanager
def trickling(server: tuple[str, int]) -> Iterator[Trickle]:
    trickle = Trickle(server)
    threading.Thread(target=trickle.accept, daemon=True).start()
    try:
        yield trickle
    finally:
        trickle.close()
