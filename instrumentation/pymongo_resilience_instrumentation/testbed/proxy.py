"""A proxy that understands MongoDB's wire protocol and injects faults into it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakValueDictionary

from pymongo_resilience_instrumentation.testbed import wire
from pymongo_resilience_instrumentation.testbed.interception import (
    HELLO_COMMANDS,
    Answer,
    Connection,
    Cut,
    CutAfterReply,
    Delay,
    Fault,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_STOP_TIMEOUT: Final = 5.0
_PEER_GONE: Final = (OSError, asyncio.IncompleteReadError)

_log = logging.getLogger(__name__)


class Proxy:
    """One member of a deployment: an address of its own in front of a running server.

    A context manager; clients connect to ``proxy.uri`` and see the proxy's address in hello::

        with EmbeddedServer() as server, Proxy(server.address) as proxy:
            client = MongoClient(proxy.uri)
            proxy.inject(CutAfter("insert", times=2))

    It hides ``topologyVersion``, so that drivers poll, and compression. It serves from a daemon
    thread; all methods may be called from any thread but that one.

    :param upstream: host and port of the server.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._faults: list[Fault] = []
        self._open: dict[Connection, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sessions: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._request_ids = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the proxy listens on; raises ``RuntimeError`` when it does not."""
        if self._server is None:
            raise RuntimeError("the proxy is not running: use it in a with block")
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def uri(self) -> str:
        """``mongodb://host:port/`` of the proxy."""
        host, port = self.address
        return f"mongodb://{host}:{port}/"

    def inject(self, fault: Fault) -> None:
        """Add a fault behind those in force; when this returns, it is in force itself."""
        self._call(lambda: self._inject(fault))

    def clear(self) -> None:
        """Remove all faults; connections stay as they are."""
        self._call(self._faults.clear)

    def start(self) -> None:
        """Listen on a free port of 127.0.0.1; raises ``OSError`` if there is none."""
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, "127.0.0.1", 0)
        )
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="pymongo_resilience_proxy", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the listening socket and every connection; harmless when it does not run."""
        if self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_STOP_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT)
        self._loop.close()
        self._thread = self._server = None

    def _call(self, function: Callable[[], None]) -> None:
        async def call() -> None:
            function()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(_STOP_TIMEOUT)

    def _inject(self, fault: Fault) -> None:
        self._faults.append(fault)
        if fault.refuses_connections():
            for writer in self._open.values():
                writer.transport.abort()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: those that asyncio starts complain loudly when they are cancelled.
        task = self._loop.create_task(self._attend(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(siblings=self._open.keys())
        self._open[connection] = writer
        try:
            if not any(fault.refuses_connections() for fault in self._active()):
                with contextlib.suppress(*_PEER_GONE):
                    await self._serve(connection, reader, writer)
        except wire.WireError as exc:
            _log.warning("closing a connection: %s", exc)
        finally:
            del self._open[connection]
            writer.transport.abort()

    async def _serve(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._upstream)
        try:
            while True:
                request = await wire.read_message(reader)
                verdict, delay = self._decide(request, connection)
                is_hello = request.command_name in HELLO_COMMANDS
                connection.commands += not is_hello
                if isinstance(verdict, Cut):
                    return
                if isinstance(verdict, Answer):
                    reply = wire.reply_to(request, verdict.document, next(self._request_ids))
                    writer.write(reply.raw)
                    continue
                replies = await self._execute(request, server_reader, server_writer)
                if isinstance(verdict, CutAfterReply):
                    return
                await asyncio.sleep(delay)
                for reply in replies:
                    writer.write(self._rewritten(reply, is_hello).raw)
                await writer.drain()
                connection.hellos += is_hello
        finally:
            server_writer.transport.abort()

    def _active(self) -> list[Fault]:
        self._faults[:] = [fault for fault in self._faults if not fault.is_over]
        return list(self._faults)

    def _decide(
        self, request: wire.Message, connection: Connection
    ) -> tuple[Cut | CutAfterReply | Answer | None, float]:
        """The first verdict that is not a delay, and the sum of the delays before it."""
        delay = 0.0
        for fault in self._active():
            verdict = fault.on_request(request, connection)
            if isinstance(verdict, Delay):
                delay += verdict.seconds
            elif verdict is not None:
                return verdict, delay
        return None, delay

    async def _execute(
        self,
        request: wire.Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> list[wire.Message]:
        """Have the server execute the request; returns all its replies, none if none is due.

        Two shortcomings of the embedded server are made up for: a repeated write is recognised
        only with an equal ``maxTimeMS``, which changes under a deadline, and only when the first
        one has finished.
        """
        if "txnNumber" not in request.body:
            return await _exchange(request, reader, writer)
        if "maxTimeMS" in request.body:
            body = {key: value for key, value in request.body.items() if key != "maxTimeMS"}
            request = request.with_body(body)
        session = bytes(request.body["lsid"]["id"])
        lock = self._sessions.setdefault(session, asyncio.Lock())
        async with lock:
            return await _exchange(request, reader, writer)

    def _rewritten(self, reply: wire.Message, is_hello: bool) -> wire.Message:
        if not is_hello and "topologyVersion" not in reply.body:
            return reply
        body: dict[str, Any] = dict(reply.body)
        body.pop("topologyVersion", None)
        if is_hello:
            body.pop("compression", None)
            address = "{}:{}".format(*self.address)
            for field in ("me", "primary"):
                if field in body:
                    body[field] = address
            if "hosts" in body:
                body["hosts"] = [address]
            for fault in self._active():
                fault.on_hello(body)
        return reply.with_body(body)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


async def _exchange(
    request: wire.Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> list[wire.Message]:
    writer.write(request.raw)
    await writer.drain()
    if request.more_to_come:
        return []
    replies = [await wire.read_message(reader)]
    while replies[-1].more_to_come:
        replies.append(await wire.read_message(reader))
    return replies
