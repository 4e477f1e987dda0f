"""Servers that a client cannot use: each accepts connections and answers in one wrong way.

Not thread-safe but for ``behave``: a peer is started and stopped by one thread.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from ssl import CERT_OPTIONAL
from typing import TYPE_CHECKING

from pymongo_resilience_instrumentation.tools.testbed.running import Running

if TYPE_CHECKING:
    import ssl

Behaviour = Callable[["Peer", socket.socket], None]
CHUNK = 65536
FULL = 0.2
"""Seconds; on this machine a connection takes less than one thousandth of that."""


class Peer(Running):
    """Listens, and serves each connection in a thread. ``behave`` may be replaced at any time."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.accepted = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def uri(self) -> str:
        """What the server says of its own address is ignored."""
        host, port = self._listening.getsockname()
        return f"mongodb://{host}:{port}/?directConnection=true"

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        for each in (self._listening, *self._open):
            # Wakes the thread that waits for it.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def keep(self, connection: socket.socket) -> socket.socket:
        """It is closed at the end."""
        self._open.append(connection)
        return connection

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._behave, args=(connection,), daemon=True).start()

    def _behave(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.behave(self, self.keep(connection))


def with_tls(server: tuple[str, int], context: ssl.SSLContext) -> Behaviour:
    """The server, behind the certificate that the context has."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        client = peer.keep(context.wrap_socket(connection, server_side=True))
        behind = peer.keep(socket.create_connection(server))
        threading.Thread(target=pass_on, args=(behind, client), daemon=True).start()
        pass_on(client, behind)

    return behave


def without_tls(server: tuple[str, int]) -> Behaviour:
    """The server, as a mongod without TLS: it hangs up on a client that begins with TLS."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        if begins_with_tls(connection):
            connection.recv(CHUNK)
            connection.close()
            return
        behind = peer.keep(socket.create_connection(server))
        threading.Thread(target=pass_on, args=(behind, connection), daemon=True).start()
        pass_on(connection, behind)

    return behave


def requires_tls(server: tuple[str, int], context: ssl.SSLContext) -> Behaviour:
    """The server, as a mongod that requires TLS: it hangs up on a client that begins without."""
    serve = with_tls(server, context)

    def behave(peer: Peer, connection: socket.socket) -> None:
        if begins_with_tls(connection):
            serve(peer, connection)
        else:
            connection.recv(CHUNK)
            connection.close()

    return behave


def refuses_certificates(server: tuple[str, int], context: ssl.SSLContext) -> Behaviour:
    """The server, as a mongod that has another CA file than its clients: TLS accepts what they
    show, then it hangs up on those that have shown something."""
    context.verify_mode = CERT_OPTIONAL

    def behave(peer: Peer, connection: socket.socket) -> None:
        client = peer.keep(context.wrap_socket(connection, server_side=True))
        client.do_handshake()
        if client.getpeercert(binary_form=True):
            client.close()
            return
        behind = peer.keep(socket.create_connection(server))
        threading.Thread(target=pass_on, args=(behind, client), daemon=True).start()
        pass_on(client, behind)

    return behave


def closes_after_tls(_server: tuple[str, int], context: ssl.SSLContext) -> Behaviour:
    """As a mongod that requires certificates, or a proxy whose server is down."""

    def behave(peer: Peer, connection: socket.socket) -> None:
        client = peer.keep(context.wrap_socket(connection, server_side=True))
        client.recv(CHUNK)
        client.close()

    return behave


def begins_with_tls(connection: socket.socket) -> bool:
    return connection.recv(1, socket.MSG_PEEK) == b"\x16"


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Until ``source`` is closed; then ``target`` is."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def answers_in_plain_text(_: Peer, connection: socket.socket) -> None:
    connection.recv(CHUNK)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection.close()


def hangs_up(_: Peer, connection: socket.socket) -> None:
    """As mongod does whose TLS is switched off: what it reads is no message."""
    connection.recv(CHUNK)
    connection.close()


def resets(_: Peer, connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def is_silent(_: Peer, connection: socket.socket) -> None:
    """Until it is stopped."""


class BlackHolePort(Running):
    """A port in front of a server, which can stop accepting: connecting then takes for ever.

    Works where the kernel drops what does not fit into a listening socket's queue, as on Linux.
    Thread-safe but for ``open`` and ``shut``, which belong to one thread at a time.
    """

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
                    threading.Thread(target=pass_on, args=pair, daemon=True).start()
