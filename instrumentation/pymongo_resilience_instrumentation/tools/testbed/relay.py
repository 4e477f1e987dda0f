"""A client's connection to a member: reads a request, decides, executes it, replies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from . import wire
from .backend import Upstream
from .fault import HELLO_COMMANDS, Amend, Answer, Cut, CutAfterReply, Delay, Hang, Rewrite, Verdict
from .wire import Document, Message

if TYPE_CHECKING:
    from .member import Member

_AWAITING: Final = ("topologyVersion", "maxAwaitTimeMS")
_STATE_CHANGES: Final = frozenset({91, 189, 10058, 10107, 11600, 11602, 13435, 13436})
"""Codes after which a driver checks the member again. Source: Server Discovery and Monitoring, "not
writable primary" errors.
"""
_WITHOUT_THE_SERVER: Final = (Answer, Cut, Hang)
_MILLISECOND: Final = 0.001


class _Hangup(Exception):  # noqa: N818 (an end, not an error)
    """Ends the connection."""


@dataclass
class _Delay:
    """A delay in seconds, which ends early if the faults that caused it are cleared."""

    cleared: asyncio.Future[None]
    seconds: float = 0.0

    async def over(self) -> None:
        if self.seconds > 0:
            await asyncio.wait({self.cleared}, timeout=self.seconds)


@dataclass(eq=False)
class Connection:
    """Serves one client until one side closes the connection."""

    member: Member
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hellos: int = 0
    """The number of hellos that were answered."""
    commands: int = 0
    """The number of other commands that were received."""
    application: str | None = None
    """The client's ``appname``, known after the first answered hello."""
    _is_internal: bool = False
    """True if the client is another member."""
    _request_ids: itertools.count[int] = field(default_factory=itertools.count)
    _upcoming: asyncio.Task[Message] | None = None

    @property
    def siblings(self) -> Collection[Connection]:
        """The open connections of the same member, including this one."""
        return self.member.connections

    @property
    def is_monitor(self) -> bool:
        """True if the connection has only sent hellos: a monitor's, or an unused one of the
        application.
        """
        return self.hellos > 0 and self.commands == 0

    async def run(self) -> None:
        """Relay until the connection ends. Raises what ``wire.read_message`` raises."""
        try:
            async with await self.member.backend.connect() as upstream:
                while True:
                    request = await self._next_request()
                    if request.command_name in HELLO_COMMANDS:
                        self._is_internal |= "internalClient" in request.body
                        await self._answer_hello(request, upstream)
                        continue
                    verdict, delay = self._decide(request)
                    self.commands += 1
                    with self.member.noticing():
                        await self._carry_out(request, upstream, verdict, delay)
        except _Hangup:
            pass
        finally:
            if self._upcoming is not None:
                self._upcoming.cancel()

    async def _next_request(self) -> Message:
        if self._upcoming is None:
            return await wire.read_message(self.reader)
        upcoming, self._upcoming = self._upcoming, None
        return await upcoming

    async def _carry_out(
        self, request: Message, upstream: Upstream, verdict: Verdict | None, delay: _Delay
    ) -> None:
        if not isinstance(verdict, _WITHOUT_THE_SERVER):
            refusal = self.member.role.refusal(self.member, request) or self._lost(request)
            if refusal is not None:
                # If the reply is to be lost, this one is lost as well. The command is not
                # executed in either case.
                verdict = Cut() if isinstance(verdict, CutAfterReply) else Answer(refusal)
        if await self._is_settled(request, verdict, delay):
            return
        reply = await upstream.execute(request)
        if isinstance(verdict, CutAfterReply):
            raise _Hangup
        await delay.over()
        addition = self.member.role.addition(self.member, request)
        while reply is not None:
            cursor = reply.body.get("cursor")
            if isinstance(cursor, dict) and cursor.get("id"):
                self.member.cursors.add(cursor["id"])
            if addition:
                reply = reply.with_body({**addition, **reply.body})
            if request.opcode == wire.OP_QUERY:
                # The command ``_isSelf``, with which a mongod finds itself in its set, is also an
                # OP_QUERY message.
                reply = wire.reply_to(request, reply.body, next(self._request_ids))
            if isinstance(verdict, Amend):
                reply = reply.with_body(self._dated({**reply.body, **verdict.fields}))
            if "topologyVersion" in reply.body and not self.member.role.passes_hellos:
                reply = reply.with_body({**reply.body, "topologyVersion": self.member.version})
            await self._send(_rewritten(verdict, reply))
            reply = await upstream.following() if reply.more_to_come else None

    async def _answer_hello(self, request: Message, upstream: Upstream) -> None:
        """Answer a hello. An awaitable hello is answered when something has changed or its time is
        over.

        A client that allows it gets a stream of replies until it closes the connection or sends
        something else (Server Monitoring, "Streaming protocol"). The server is asked for one reply
        at a time: without waiting if the member itself knows about changes, otherwise for as long
        as the client would wait.
        """
        known: Any = request.body.get("topologyVersion")
        milliseconds: Any = request.body.get("maxAwaitTimeMS")
        awaited = known is not None and milliseconds is not None
        streams = awaited and request.exhaust_allowed
        body = {key: value for key, value in request.body.items() if key not in _AWAITING}
        plain, reply = request.for_one_reply().with_body(body) if awaited else request, None
        if awaited:
            verdict, delay = self._decide(request, arriving=True)
            with self.member.noticing():
                if await self._is_settled(request, verdict, delay):
                    return
        while True:
            if awaited and self.member.role.passes_hellos:
                waiting = {"topologyVersion": known, "maxAwaitTimeMS": milliseconds}
                asked = request.for_one_reply().with_body({**body, **waiting})
                reply = await self._unless_the_client_stirs(upstream.execute(asked))
            elif awaited and not await self._news(known, milliseconds):
                return
            verdict, delay = self._decide(request, arriving=False if awaited else None)
            with self.member.noticing():
                if await self._is_settled(request, verdict, delay):
                    if streams:
                        raise _Hangup
                    return
                reply = reply or await upstream.execute(plain)
                if isinstance(verdict, CutAfterReply) or reply is None:
                    raise _Hangup
                await delay.over()
                shown = dict(reply.body)
                self.member.describe(shown)
                reply = wire.reply_to(request, shown, next(self._request_ids))
                # An error ends the stream, for example that of a server that shuts down.
                streams = streams and "topologyVersion" in shown
                await self._send(_rewritten(verdict, reply.streamed() if streams else reply))
                self.hellos += 1
                self.application = _application(request) or self.application
            if not streams:
                return
            known, reply = shown["topologyVersion"], None

    async def _unless_the_client_stirs(
        self, execution: Coroutine[Any, Any, Message | None]
    ) -> Message | None:
        """Return the reply. End the connection if the client closes it or sends something else
        before.
        """
        reply = asyncio.ensure_future(execution)
        try:
            await asyncio.wait({reply, self._listening()}, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                raise _Hangup
            return reply.result()
        finally:
            reply.cancel()

    async def _news(self, known: Document, milliseconds: float) -> bool:
        """Wait for another topology version than ``known``. Return False if the client sends
        something before.
        """
        upcoming = self._listening()
        if known == self.member.version:
            news: set[asyncio.Future[Any]] = {upcoming, self.member.changed}
            timeout = milliseconds * _MILLISECOND
            await asyncio.wait(news, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return not upcoming.done()

    def _listening(self) -> asyncio.Task[Any]:
        """Return the task that already reads the client's next request while the client waits for a
        hello.
        """
        if self._upcoming is None:
            self._upcoming = asyncio.ensure_future(wire.read_message(self.reader))
        return self._upcoming

    def _decide(
        self, request: Message, *, arriving: bool | None = None
    ) -> tuple[Verdict | None, _Delay]:
        """Return the first verdict that is not a delay, and the sum of the delays before it.

        Args:
            arriving: For an awaitable hello, whether it has just arrived or is about to be
                answered. Each interception is asked at one of the two moments. None for every other
                request.
        """
        delay = _Delay(self.member.cleared)
        for interception in self.member.active():
            if self._is_internal and not interception.parts_members:
                continue
            if arriving is not None and arriving is not interception.decides_on_arrival:
                continue
            verdict = interception.on_request(request, self)
            if isinstance(verdict, Delay):
                delay.seconds += verdict.seconds
            elif verdict is not None:
                return verdict, delay
        return None, delay

    async def _is_settled(self, request: Message, verdict: Verdict | None, delay: _Delay) -> bool:
        """Carry out a verdict for which the server does not need to see the request. Return True
        for such a verdict.
        """
        if isinstance(verdict, Cut):
            raise _Hangup
        if isinstance(verdict, Hang):
            # Instead of the delays of other faults.
            delay.seconds = verdict.seconds
            await delay.over()
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
        """Add a new topology version to an error that reports a change of the member's state.

        As on mongod, the version shows a driver that the error is new, and that the following hello
        is not older. An error with which a secondary refuses a request has its version already,
        because nothing has changed.
        """
        if "topologyVersion" in document or self.member.role.passes_hellos:
            return document
        codes = {document.get("code"), document.get("writeConcernError", {}).get("code")}
        if codes.isdisjoint(_STATE_CHANGES):
            return document
        self.member.announce()
        return {**document, "topologyVersion": self.member.version}

    def _lost(self, request: Message) -> Document | None:
        """Return the error of a restarted member for a cursor from before the restart."""
        if request.command_name != "getMore" or self.member.role.passes_hellos:
            return None
        number = request.body["getMore"]
        if number in self.member.cursors:
            return None
        return wire.error(43, "CursorNotFound", f"cursor id {number} not found")


def _application(hello: Message) -> str | None:
    client = hello.body.get("client")
    application = client.get("application") if isinstance(client, dict) else None
    name = application.get("name") if isinstance(application, dict) else None
    return name if isinstance(name, str) else None


def _rewritten(verdict: Verdict | None, reply: Message) -> bytes:
    return verdict.rewritten(reply) if isinstance(verdict, Rewrite) else reply.raw
