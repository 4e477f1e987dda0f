"""A server of so many requests per second, in a process of its own, that rejects what is above it.

Its capacity is arithmetic, no work: it says when a reply is due, and the reply is sent then. So the
machine is not the limit, and the limit is the same on every machine. It behaves like the ingress
request rate limiter of MongoDB 8.2 and newer: *every* command takes a token, the hello and the
login of a new connection included; a rejection has code 462 and leaves the connection open.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bson import ObjectId
from pymongo_resilience_instrumentation.tools.testbed import wire
from pymongo_resilience_instrumentation.tools.testbed.command_faults import Overload

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Request = tuple[float, bool]
"""When it arrived (seconds, ``time.monotonic``), and whether it was admitted."""


@dataclass
class Log:
    """What the server has seen."""

    requests: list[Request] = field(default_factory=list)
    """The application's commands."""
    late: list[float] = field(default_factory=list)
    """How late each was answered (seconds): what the machine adds to the arithmetic."""
    own: list[Request] = field(default_factory=list)
    """What the driver sends by itself: hello, login, endSessions."""
    dialed: list[float] = field(default_factory=list)
    """When connections were made."""


HELLOS: Final = ("hello", "isMaster", "ismaster")
HELLO: Final = {
    "helloOk": True,
    "isWritablePrimary": True,
    "ismaster": True,
    "setName": "bench",
    "setVersion": 1,
    "maxBsonObjectSize": 16 * 1024 * 1024,
    "maxMessageSizeBytes": 48_000_000,
    "maxWriteBatchSize": 100_000,
    "minWireVersion": 0,
    "maxWireVersion": 25,
    "logicalSessionTimeoutMinutes": 30,
    "ok": 1.0,
}
FOUND: Final = wire.command(
    {"cursor": {"id": 0, "ns": "bench.coll", "firstBatch": [{"_id": 1}]}, "ok": 1.0}
).payload
WRITTEN: Final = wire.command({"n": 1, "nModified": 1, "ok": 1.0}).payload
REJECTED: Final = wire.command(Overload().document).payload
_HEADER = struct.Struct("<iiii")
_NAME_AT = 26
"""Where the name of a command begins in ``OP_MSG``: after the header, the flags, the kind of the
section, the document's length and the element's type."""
_APPLICATIONS: Final = {b"find": FOUND, b"update": WRITTEN, b"insert": WRITTEN}


class Limit:
    """Decides about each request. ``lifted``: from then on (``time.monotonic``), all pass."""

    lifted = float("inf")

    def receive(self, now: float, request: bytes) -> tuple[bool, float]:
        """Whether a request that arrives now is admitted, and when it is answered."""
        raise NotImplementedError


@dataclass
class Capacity(Limit):
    """One processor that answers in turn, and first turns away what it has no room for.

    :param rate: requests per second.
    :param burst: how many may be waiting at once.
    :param rejection: what a rejection costs, as a part of a request.
    :param at_random: the part that is rejected whatever the load, at no cost.
    """

    rate: float
    burst: float
    rejection: float = 0.0
    at_random: float = 0.0
    _rng: random.Random = field(default_factory=lambda: random.Random(8))  # noqa: S311 - no secrets
    _busy_until: float = 0.0
    _front_until: float = 0.0

    def receive(self, now: float, request: bytes = b"") -> tuple[bool, float]:  # noqa: ARG002
        """Rejections come before the requests that wait, and keep them waiting for longer."""
        if now >= self.lifted:
            return True, now
        if self.at_random and self._rng.random() < self.at_random:
            return False, now
        self._busy_until = max(self._busy_until, now)
        self._front_until = max(self._front_until, now)
        if (self._busy_until - now) * self.rate + 1 <= self.burst:
            self._busy_until += 1 / self.rate
            return True, self._busy_until
        cost = self.rejection / self.rate
        self._busy_until += cost
        self._front_until += cost
        return False, self._front_until


@dataclass
class Tokens(Limit):
    """MongoDB's ingress request rate limiter: a token for each request, and at once an answer.

    :param rate: tokens per second.
    :param burst: the most that the bucket holds, and what it begins with.
    :param rejection: what a rejection costs, as a part of a token; MongoDB's costs nothing.
    """

    rate: float
    burst: float
    rejection: float = 0.0
    _tokens: float | None = None
    _refilled: float = 0.0

    def receive(self, now: float, request: bytes = b"") -> tuple[bool, float]:  # noqa: ARG002
        if now >= self.lifted:
            return True, now
        there = self.burst if self._tokens is None else self._tokens
        there = min(self.burst, there + (now - self._refilled) * self.rate)
        self._refilled = now
        admitted = there >= 1
        self._tokens = there - (1 if admitted else self.rejection)
        return admitted, now


@dataclass
class EachRejected(Limit):
    """Rejects each operation's first ``times`` attempts, and nothing else. An operation is known by
    what it looks for: ``{"_id": <number>}``."""

    times: int
    _seen: Counter[bytes] = field(default_factory=Counter)

    def receive(self, now: float, request: bytes = b"") -> tuple[bool, float]:
        at = request.find(b"\x10_id\0")
        if at < 0:
            return True, now
        operation = request[at : at + 9]
        self._seen[operation] += 1
        return self._seen[operation] > self.times, now


@dataclass
class ApplicationsRejected(Limit):
    """Rejects the application's commands, and admits what the driver sends: clients can connect."""

    def receive(self, now: float, request: bytes = b"") -> tuple[bool, float]:
        return not request or now >= self.lifted, now


class _Serving(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._received = bytearray()
        self._loop = asyncio.get_running_loop()
        self._streaming: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        now = self._loop.time()
        self._server.log.dialed.append(now)
        if self._server.is_down(now):
            transport.abort()  # type: ignore[attr-defined]
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._server.connections.discard(self)
        if self._streaming is not None:
            self._streaming.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _HEADER.size:
            length, request_id, _, opcode = _HEADER.unpack_from(received)
            if len(received) < length:
                return
            raw = bytes(received[:length])
            del received[:length]
            name = raw[_NAME_AT : raw.find(b"\0", _NAME_AT)] if opcode == wire.OP_MSG else b""
            if (answer := _APPLICATIONS.get(name)) is not None:
                self._reply_to_application(request_id, raw, answer)
            else:
                self._reply_to_driver(wire.parse(raw))

    def _reply_to_application(self, request_id: int, raw: bytes, answer: bytes) -> None:
        now = self._loop.time()
        admitted, due = self._server.limit.receive(now, raw)
        self._server.log.requests.append((now, admitted))
        payload = answer if admitted else REJECTED
        header = _HEADER.pack(_HEADER.size + len(payload), 0, request_id, wire.OP_MSG)
        if due <= now:
            self._send_when_due(due, header + payload)
        else:
            self._loop.call_at(due, self._send_when_due, due, header + payload)

    def _send_when_due(self, due: float, reply: bytes) -> None:
        self._server.log.late.append(self._loop.time() - due)
        self._send(reply)

    def _reply_to_driver(self, request: wire.Message) -> None:
        now = self._loop.time()
        admitted, due = self._server.limit.receive(now)
        self._server.log.own.append((now, admitted))
        if not admitted:
            reply = wire.reply_to(request, Overload().document, 0)
        elif request.command_name not in HELLOS:
            done = {"conversationId": 1, "done": True, "payload": b""}
            reply = wire.reply_to(request, {**done, "ok": 1.0}, 0)
        elif "maxAwaitTimeMS" in request.body:
            # It has taken its token; the replies that stream after it are free.
            self._stream(request)
            return
        else:
            reply = wire.reply_to(request, dict(self._server.hello), 0)
        self._loop.call_at(due, self._send, reply.raw)

    def _stream(self, request: wire.Message) -> None:
        seconds = request.body["maxAwaitTimeMS"] / 1000

        def send() -> None:
            self._send(wire.reply_to(request, dict(self._server.hello), 0).streamed().raw)
            self._streaming = self._loop.call_later(seconds, send)

        self._streaming = self._loop.call_later(seconds, send)

    def _send(self, reply: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(reply)


class _Server:
    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.log = Log()
        self.connections: set[_Serving] = set()
        self.hello: dict[str, Any] = {}
        self._down_until = 0.0

    def is_down(self, now: float) -> bool:
        return now < self._down_until

    def restart(self, seconds: float) -> None:
        """Close every connection, and those that are made within ``seconds``."""
        self._down_until = time.monotonic() + seconds
        for each in list(self.connections):
            each.abort()

    async def until_stopped(self, control: Connection) -> Log:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()

        def told() -> None:
            name, value = control.recv()
            if name == "lift":
                self.limit.lifted = value
            elif name == "restart":
                self.restart(value)
            else:
                stopped.set()

        loop.add_reader(control.fileno(), told)
        server = await loop.create_server(lambda: _Serving(self), "127.0.0.1", 0, backlog=4096)
        port = server.sockets[0].getsockname()[1]
        at = f"127.0.0.1:{port}"
        version = {"processId": ObjectId(), "counter": 1}
        self.hello = {**HELLO, "hosts": [at], "primary": at, "me": at, "topologyVersion": version}
        control.send(port)
        await stopped.wait()
        loop.remove_reader(control.fileno())
        return self.log


class LimitedServer:
    """Started and stopped by ``with``; afterwards ``log`` has what arrived."""

    def __init__(self, limit: Limit, *, login: bool = False) -> None:
        self.log = Log()
        context = multiprocessing.get_context("forkserver")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(limit, theirs), daemon=True)
        self._login = login

    def __enter__(self) -> LimitedServer:
        self._process.start()
        port = self._ours.recv()
        login = ("user:password@", "&authMechanism=PLAIN") if self._login else ("", "")
        self.uri = f"mongodb://{login[0]}127.0.0.1:{port}/?replicaSet=bench{login[1]}"
        return self

    def lift(self, at: float) -> None:
        """From then on (``time.monotonic``) everything is admitted."""
        self._ours.send(("lift", at))

    def restart(self, seconds: float) -> None:
        """Close all connections now, and those that are made within so many seconds."""
        self._ours.send(("restart", seconds))

    def __exit__(self, *_: object) -> None:
        self._ours.send(("stop", None))
        self.log = self._ours.recv()
        self._process.join()


def _serve(limit: Limit, control: Connection) -> None:
    control.send(asyncio.run(_Server(limit).until_stopped(control)))
