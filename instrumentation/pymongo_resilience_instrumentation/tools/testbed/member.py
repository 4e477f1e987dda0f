"""One member of a deployment: its address, its connections, and the faults that intercept them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

from bson import Int64, ObjectId

from . import wire
from .backend import Backend
from .fault import Fault, Interception
from .processes import HOST
from .relay import Connection
from .running import TestbedError
from .wire import Document

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_log = logging.getLogger(__name__)


class Member:
    """A listening address in front of the backend. Everything here runs in one event loop.

    Args:
        index: The member's position in the deployment, from 0.
        role: The deployment, which describes the member in hellos and refuses requests for it.
        port: The port to listen on, or 0 for a free one.

    Raises:
        TestbedError: The port is in use.
    """

    def __init__(self, index: int, backend: Backend, role: Any, port: int = 0) -> None:
        self.index = index
        self.backend = backend
        self.role = role
        self.interceptions: list[Interception] = []
        self.cursors: set[int] = set()
        """Cursors that were opened here since the last start. A restart loses them."""
        self.connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._down: set[Fault] = set()
        """The causes that keep the address closed. It opens again when the last one has ended."""
        self.cleared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the current faults are cleared; then a new future replaces it."""
        self._listener: asyncio.Server | None = None
        # While the member is down, the socket is bound but does not listen. So no other process can
        # take the port, and the kernel refuses connections to it.
        self._reserved: socket.socket | None = _bound(port)
        self.address: tuple[str, int] = self._reserved.getsockname()
        self.changed: asyncio.Future[None]
        self._begin_incarnation()

    @property
    def host_and_port(self) -> str:
        """``host:port``, as in hellos and error messages."""
        return "{}:{}".format(*self.address)

    @property
    def is_listening(self) -> bool:
        return self._listener is not None

    @property
    def version(self) -> Document:
        return {"processId": self._process_id, "counter": Int64(self._counter)}

    def announce(self) -> None:
        """Tell every client that waits for a hello that the member's state has changed."""
        self._counter += 1
        self.changed.set_result(None)
        self.changed = asyncio.get_running_loop().create_future()

    async def listen(self, cause: Fault | None = None) -> None:
        """Accept connections at the same address as before, unless another cause than ``cause``
        refuses them.
        """
        if cause is not None:
            self._down.discard(cause)
        if self._down or self._reserved is None:
            return
        # In two steps, so that a cancellation cannot happen before the socket has an owner that
        # closes it.
        self._listener = await asyncio.start_server(
            self._accept, sock=self._reserved, backlog=1024, start_serving=False
        )
        self._reserved = None
        await self._listener.start_serving()

    def keep_waiting(self, cause: Fault) -> None:
        """Let the kernel queue new connections until ``listen(cause)`` accepts them."""
        if self._reserved is not None and self._down <= {cause}:
            self._reserved.listen()

    def refuse(self, cause: Fault) -> None:
        """Stop accepting, so that the kernel refuses new connections. Open connections stay
        open.
        """
        self._down.add(cause)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._reserved = _bound(self.address[1])

    def reset(self) -> None:
        """Reset every open connection, so that clients read ECONNRESET."""
        for connection in self.connections:
            transport = connection.writer.transport
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
                )
            transport.abort()

    def shut_down(self, cause: Fault) -> None:
        """Stop as a process does: connections, cursors and the topology version are lost."""
        self.refuse(cause)
        self.reset()
        self._begin_incarnation()

    async def close(self) -> None:
        """Close the address and every connection for good."""
        for address in (self._listener, self._reserved):
            if address is not None:
                address.close()
        self._listener = self._reserved = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def active(self) -> list[Interception]:
        """Return the active interceptions, in the order of their injection."""
        self.interceptions[:] = [each for each in self.interceptions if not each.is_over]
        return list(self.interceptions)

    @contextlib.contextmanager
    def noticing(self) -> Iterator[None]:
        """Wrap the handling of one request. If an interception ends in it, the interception is
        notified.
        """
        active = list(self.interceptions)
        try:
            yield
        finally:
            for each in active:
                if each.is_over:
                    each.acted()

    def clear(self) -> None:
        """Remove all interceptions and release the requests that they hold."""
        self.interceptions.clear()
        self.cleared.set_result(None)
        self.cleared = asyncio.get_running_loop().create_future()

    def describe(self, hello: dict[str, Any]) -> None:
        """Change the server's reply to a hello, in place, into that of the member."""
        hello.pop("compression", None)
        if not self.role.passes_hellos:
            hello["topologyVersion"] = self.version
        self.role.describe(self, hello)
        for interception in self.active():
            interception.on_hello(hello)

    def _begin_incarnation(self) -> None:
        self._process_id = ObjectId()
        self._counter = 0
        self.cursors.clear()
        self.changed = asyncio.get_running_loop().create_future()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:
            # The connection was accepted just before the member went down.
            writer.transport.abort()
            return
        # Start the task here: for a task that asyncio starts, it prints an error when the task is
        # cancelled.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self.connections.add(connection)
        try:
            await connection.run()
        except wire.WireError as exc:
            _log.warning("closing a connection: %s", exc)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections.discard(connection)
            writer.transport.abort()


def _bound(port: int) -> socket.socket:
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind((HOST, port))
    except OSError as exc:
        reserved.close()
        raise TestbedError(f"cannot listen on {HOST}:{port}: {exc.strerror}") from exc
    return reserved
