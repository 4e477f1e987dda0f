"""One client connection through a member: read a request, decide, execute, reply."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pymongo_resilience_instrumentation.tools.testbed import wire
from pymongo_resilience_instrumentation.tools.testbed.traffic import (
    HELLO_COMMANDS,
    Amend,
    Answer,
    Cut,
    CutAfterReply,
    Delay,
    Hang,
    Rewrite,
)

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.tools.testbed.traffic import Connection, Verdict
    from pymongo_resilience_instrumentation.tools.testbed.wire import Document, Message

    from .backend import Upstream
    from .member import Member

_AWAITING: Final = ("topologyVersion", "maxAwaitTimeMS")
_STATE_CHANGES: Final = frozenset({91, 189, 10058, 10107, 11600, 11602, 13435, 13436})
"""Codes after which a driver looks at the member anew (SDAM, "not writable primary" errors)."""
_WITHOUT_THE_SERVER: Final = (Answer, Cut, Hang)
_MILLISECOND: Final = 0.001


class _Hangup(Exception):  # noqa: N818 (an end, not an error)
    """The connection ends here."""


@dataclass(frozen=True, slots=True)
class _Delay:
    """So many seconds, or until the faults that asked for it are cleared."""

    seconds: float
    cleared: asyncio.Future[None]

    async def over(self) -> None:
        if self.seconds > 0:
            await asyncio.wait({self.cleared}, timeout=self.seconds)


class Relay:
    """Serves one connection until either side closes it."""

    def __init__(
        self,
        member: Member,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.writer = writer
        self._member = member
        self._connection = connection
        self._reader = reader
        self._request_ids = itertools.count(1)
        self._upcoming: asyncio.Task[Message] | None = None

    async def run(self) -> None:
        """Relay until the connection ends.

        Raises ``OSError`` or ``asyncio.IncompleteReadError`` when a side is gone, ``WireError``
        for bytes that make no message.
        """
        try:
            async with await self._member.backend.connect() as upstream:
                while True:
                    request = await self._next_request()
                    if request.command_name in HELLO_COMMANDS:
                        internal = "internalClient" in request.body
                        self._connection.is_internal |= internal
                        passes = self._member.role.passes_hellos
                        answer = self._pass_hello if passes else self._answer_hello
                        await answer(request, upstream)
                    else:
                        await self._answer(request, upstream)
        except _Hangup:
            pass
        finally:
            if self._upcoming is not None:
                self._upcoming.cancel()

    async def _next_request(self) -> Message:
        if self._upcoming is None:
            return await wire.read_message(self._reader)
        upcoming, self._upcoming = self._upcoming, None
        return await upcoming

    async def _answer(self, request: Message, upstream: Upstream) -> None:
        verdict, delay = self._decide(request)
        self._connection.commands += 1
        with self._member.noticing():
            await self._carry_out(request, upstream, verdict, delay)

    async def _carry_out(
        self, request: Message, upstream: Upstream, verdict: Verdict | None, delay: _Delay
    ) -> None:
        if not isinstance(verdict, _WITHOUT_THE_SERVER):
            refusal = self._member.role.refusal(self._member, request) or self._lost(request)
            if refusal is not None:
                # Lost as well, where the reply is: nothing is executed either way.
                verdict = Cut() if isinstance(verdict, CutAfterReply) else Answer(refusal)
        if await self._is_settled(request, verdict, delay):
            return
        reply = await upstream.execute(request)
        if isinstance(verdict, CutAfterReply):
            raise _Hangup
        await delay.over()
        addition = self._member.role.addition(self._member, request)
        while reply is not None:
            self._remember(reply)
            if addition:
                reply = reply.with_body({**addition, **reply.body})
            if isinstance(verdict, Amend):
                reply = reply.with_body(self._dated({**reply.body, **verdict.fields}))
            await self._send(_rewritten(verdict, self._own(reply)))
            reply = await upstream.following() if reply.more_to_come else None

    async def _answer_hello(self, request: Message, upstream: Upstream) -> None:
        """Answer a hello; one that is awaited, when there is news or its time is up.

        A client that allows it gets a stream of replies until it closes or sends something else
        (SDAM monitoring, "Streaming protocol").
        """
        known = request.body.get("topologyVersion")
        awaited = known is not None and "maxAwaitTimeMS" in request.body
        plain = request
        if awaited:
            body = {key: value for key, value in request.body.items() if key not in _AWAITING}
            # A server is asked once: it refuses a stream that does not say how often.
            plain = request.for_one_reply().with_body(body)
        while True:
            if awaited and not await self._news(known, request.body["maxAwaitTimeMS"]):
                return
            streams = awaited and request.exhaust_allowed
            with self._member.noticing():
                known = await self._say_hello(request, plain, upstream, streams=streams)
            if not streams:
                return

    async def _pass_hello(self, request: Message, upstream: Upstream) -> None:
        """Pass on what the server answers, a stream of replies as well."""
        verdict, delay = self._decide(request)
        with self._member.noticing():
            if await self._is_settled(request, verdict, delay):
                return
        reply = await upstream.execute(request)
        while reply is not None:
            if isinstance(verdict, CutAfterReply):
                raise _Hangup
            await delay.over()
            body = dict(reply.body)
            self._member.describe(body)
            await self._send(_rewritten(verdict, reply.with_body(body)))
            self._connection.hellos += 1
            if not reply.more_to_come:
                return
            reply = await self._next_hello(upstream)
            verdict, delay = self._decide(request)
            with self._member.noticing():
                if await self._is_settled(request, verdict, delay):
                    raise _Hangup

    async def _next_hello(self, upstream: Upstream) -> Message:
        """The next reply of a stream; the connection ends where the client stirs."""
        following = asyncio.ensure_future(upstream.following())
        if self._upcoming is None:
            self._upcoming = asyncio.ensure_future(wire.read_message(self._reader))
        try:
            either: set[asyncio.Future[Any]] = {following, self._upcoming}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                raise _Hangup
            return following.result()
        finally:
            following.cancel()

    async def _say_hello(
        self, request: Message, plain: Message, upstream: Upstream, *, streams: bool
    ) -> Document | None:
        """The topology version that it sent; None where a fault answered."""
        verdict, delay = self._decide(request)
        if await self._is_settled(request, verdict, delay):
            if streams:
                raise _Hangup
            return None
        reply = await upstream.execute(plain)
        if isinstance(verdict, CutAfterReply) or reply is None:
            raise _Hangup
        await delay.over()
        body = dict(reply.body)
        self._member.describe(body)
        reply = reply.with_body(body)
        await self._send(_rewritten(verdict, reply.streamed() if streams else reply))
        self._connection.hellos += 1
        known: Document = body["topologyVersion"]
        return known

    async def _news(self, known: Document | None, milliseconds: float) -> bool:
        """Wait for another topology version than ``known``; false if the client stirs first."""
        if self._upcoming is None:
            self._upcoming = asyncio.ensure_future(wire.read_message(self._reader))
        if known == self._member.version:
            news: set[asyncio.Future[Any]] = {self._upcoming, self._member.changed}
            await asyncio.wait(
                news,
                timeout=milliseconds * _MILLISECOND,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return not self._upcoming.done()

    def _decide(self, request: Message) -> tuple[Verdict | None, _Delay]:
        """The first verdict that is not a delay, and the sum of the delays before it."""
        delay = _Delay(0.0, self._member.cleared)
        for interception in self._member.active():
            if self._connection.is_internal and not interception.parts_members:
                continue
            verdict = interception.on_request(request, self._connection)
            if isinstance(verdict, Delay):
                delay = replace(delay, seconds=delay.seconds + verdict.seconds)
            elif verdict is not None:
                return verdict, delay
        return None, delay

    async def _is_settled(self, request: Message, verdict: Verdict | None, delay: _Delay) -> bool:
        """Act on a verdict for which the server need not see the request."""
        if isinstance(verdict, Cut):
            raise _Hangup
        if isinstance(verdict, Hang):
            await replace(delay, seconds=verdict.seconds).over()
            raise _Hangup
        if not isinstance(verdict, Answer):
            return False
        await delay.over()
        if not request.more_to_come:
            document = self._dated(verdict.document)
            await self._send(wire.reply_to(request, document, next(self._request_ids)).raw)
        return True

    async def _send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    def _dated(self, document: Document) -> Document:
        """The error with a new topology version, if it reports a change of the member's state.

        As on mongod: with it a driver knows that the error is news, and that the hello which
        follows at once is not older. What a secondary refuses has its version already: it changes
        nothing.
        """
        if "topologyVersion" in document or self._member.role.passes_hellos:
            return document
        codes = {document.get("code"), document.get("writeConcernError", {}).get("code")}
        if codes.isdisjoint(_STATE_CHANGES):
            return document
        self._member.announce()
        return {**document, "topologyVersion": self._member.version}

    def _own(self, reply: Message) -> Message:
        """The reply with the member's topology version where it has the server's."""
        if "topologyVersion" not in reply.body or self._member.role.passes_hellos:
            return reply
        return reply.with_body({**reply.body, "topologyVersion": self._member.version})

    def _remember(self, reply: Message) -> None:
        cursor = reply.body.get("cursor")
        if isinstance(cursor, dict) and cursor.get("id"):
            self._member.cursors.add(cursor["id"])

    def _lost(self, request: Message) -> Document | None:
        """What a restarted member says of a cursor from before."""
        if request.command_name != "getMore" or self._member.role.passes_hellos:
            return None
        if request.body["getMore"] in self._member.cursors:
            return None
        number = request.body["getMore"]
        return {
            "ok": 0.0,
            "errmsg": f"cursor id {number} not found",
            "code": 43,
            "codeName": "CursorNotFound",
        }


def _rewritten(verdict: Verdict | None, reply: Message) -> bytes:
    return verdict.rewritten(reply) if isinstance(verdict, Rewrite) else reply.raw
