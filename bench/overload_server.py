"""A server of so many requests per second, in a process of its own, that sheds what is above it.

Its capacity is arithmetic, no work: it says when a reply is due, and the reply is sent then. So the
machine is not the limit, and the limit is the same on every machine.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pymongo_resilience_instrumentation.tools.testbed import wire
from pymongo_resilience_instrumentation.tools.testbed.command_faults import Overload

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Request = tuple[float, bool]
"""When it arrived (seconds, ``time.monotonic``), and whether it was admitted."""
Log = tuple[list[Request], list[float]]
"""Requests, and how late each was answered (seconds): what the machine adds to the arithmetic."""

HELLO: Final = {
    "helloOk": True,
    "isWritablePrimary": True,
    "ismaster": True,
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
REJECTED: Final = wire.command(Overload().document).payload
HELLOS: Final = ("hello", "isMaster", "ismaster")
_HEADER = struct.Struct("<iiii")
_NAME_AT = 26
"""Where the name of a command begins in ``OP_MSG``: after the header, the flags, the kind of the
section, the document's length and the element's type."""


@dataclass
class Capacity:
    """One processor that answers in turn, and first turns away what it has no room for.

    :param rate: requests per second.
    :param burst: how many may be waiting at once; 0 admits nothing at all.
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

    def receive(self, now: float) -> tuple[bool, float]:
        """Whether a request that arrives now is admitted, and when it is answered.

        Rejections come before the requests that wait, and keep them waiting for longer.
        """
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


class _Serving(asyncio.Protocol):
    """One connection. Only finds count: they are what the benchmark sends."""

    def __init__(self, capacity: Capacity, log: Log) -> None:
        self._capacity = capacity
        self._requests, self._late = log
        self._received = bytearray()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _HEADER.size:
            length, request_id, _, opcode = _HEADER.unpack_from(received)
            if len(received) < length:
                return
            raw = bytes(received[:length])
            del received[:length]
            if opcode == wire.OP_MSG and raw.startswith(b"find\0", _NAME_AT):
                self._find(request_id)
            else:
                self._answer(wire.parse(raw))

    def _find(self, request_id: int) -> None:
        now = self._loop.time()
        admitted, due = self._capacity.receive(now)
        self._requests.append((now, admitted))
        payload = FOUND if admitted else REJECTED
        header = _HEADER.pack(_HEADER.size + len(payload), 0, request_id, wire.OP_MSG)
        self._loop.call_at(due, self._send_when_due, due, header + payload)

    def _send_when_due(self, due: float, reply: bytes) -> None:
        self._late.append(self._loop.time() - due)
        self._send(reply)

    def _answer(self, request: wire.Message) -> None:
        reply = HELLO if request.command_name in HELLOS else {"ok": 1.0}
        self._send(wire.reply_to(request, dict(reply), 0).raw)

    def _send(self, reply: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(reply)


class LimitedServer:
    """Started and stopped by ``with``; afterwards it knows what has arrived."""

    def __init__(self, capacity: Capacity) -> None:
        self.requests: list[Request] = []
        self.late: list[float] = []
        context = multiprocessing.get_context("forkserver")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(capacity, theirs), daemon=True)

    def __enter__(self) -> LimitedServer:
        self._process.start()
        port = self._ours.recv()
        self.uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send("stop")
        self.requests, self.late = self._ours.recv()
        self._process.join()


def _serve(capacity: Capacity, control: Connection) -> None:
    control.send(asyncio.run(_until_stopped(capacity, control)))


async def _until_stopped(capacity: Capacity, control: Connection) -> Log:
    log: Log = ([], [])
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_reader(control.fileno(), stopped.set)
    server = await loop.create_server(lambda: _Serving(capacity, log), "127.0.0.1", 0, backlog=4096)
    control.send(server.sockets[0].getsockname()[1])
    await stopped.wait()
    loop.remove_reader(control.fileno())
    return log
