"""A port in front of a server that can stop accepting connections: connecting then takes for ever.

Every other fault of the test bed strikes once a connection is there. Works where the kernel drops
what does not fit into the queue of a listening socket, as Linux does.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

from .running import Running

FULL = 0.2
"""Seconds; on this machine a connection takes less than one thousandth of that."""
CHUNK = 65536


class BlackHolePort(Running):
    """Thread-safe but for ``open`` and ``shut``, which belong to one thread at a time."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listening = socket.socket()
        self._connections: list[socket.socket] = []
        self._accepting: threading.Thread | None = None
        self._waking, self._woken = socket.socketpair()

    @property
    def uri(self) -> str:
        """Of the server, as seen through here; what it says of its own address is ignored."""
        host, port = self._listening.getsockname()
        return f"mongodb://{host}:{port}/?directConnection=true"

    def start(self) -> None:
        """Listen on a free port, open."""
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen(0)
        self._listening.setblocking(False)
        self.open()

    def open(self) -> None:
        """Accept connections from now on, those that have waited first."""
        if self._accepting is not None:
            return
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def shut(self) -> None:
        """New connections wait; those that are there live on."""
        self._end_accepting()
        with contextlib.suppress(TimeoutError):
            while True:
                address = self._listening.getsockname()
                self._connections.append(socket.create_connection(address, timeout=FULL))

    def stop(self) -> None:
        """Close everything."""
        self._end_accepting()
        for each in (self._listening, self._waking, self._woken):
            each.close()
        for each in self._connections:
            # Wakes the thread that reads from it.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _end_accepting(self) -> None:
        if self._accepting is not None:
            self._waking.send(b"x")
            self._accepting.join()
            self._accepting = None

    def _accept(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._woken, selectors.EVENT_READ)
            ready.register(self._listening, selectors.EVENT_READ)
            while True:
                if any(key.fileobj is self._woken for key, _ in ready.select()):
                    self._woken.recv(1)
                    return
                client, _ = self._listening.accept()
                client.setblocking(True)
                server = socket.create_connection(self._server)
                self._connections += client, server
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
