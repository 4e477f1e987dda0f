"""A client that is no driver: one socket, one message at a time, and nothing behind its back."""

from __future__ import annotations

import itertools
import socket
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from bson import Binary
from bson.binary import UUID_SUBTYPE
from pymongo_resilience_instrumentation.tools.testbed import wire

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.tools.testbed.wire import Document, Message

_LENGTH = 4


class RawClient:
    """One connection; a context manager. Every wait ends after ``timeout`` seconds."""

    def __init__(self, address: tuple[str, int], *, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection(address, timeout=timeout)
        self._numbers = itertools.count(1)

    def send(self, body: Document, *, flags: int = 0) -> None:
        """One command; without ``$db`` it goes to ``admin``."""
        # Not the other way round: the name of a command is its first field.
        named = {**body, "$db": body.get("$db", "admin")}
        message = replace(wire.command(named, next(self._numbers)), flags=flags)
        self.socket.sendall(message.with_body(named).raw)

    def receive(self) -> Message:
        """The next reply; ``ConnectionError`` when there is none any more."""
        head = self._exactly(_LENGTH)
        return wire.parse(head + self._exactly(int.from_bytes(head, "little") - _LENGTH))

    def ask(self, body: Document) -> Document:
        """The reply to one command."""
        self.send(body)
        return self.receive().body

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = self.socket.recv(count - len(received))
            if not part:
                raise ConnectionError("the other side has closed the connection")
            received += part
        return received

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()


def ask(address: tuple[str, int], body: Document) -> Document:
    """The reply to one command on a connection of its own."""
    with RawClient(address) as client:
        return client.ask(body)


def new_session() -> Document:
    """A logical session that nobody has used."""
    return {"id": Binary(uuid.uuid4().bytes, UUID_SUBTYPE)}
