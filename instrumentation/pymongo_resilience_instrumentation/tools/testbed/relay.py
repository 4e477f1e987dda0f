"""A client's connection to a member: read a request, decide, execute, reply."""

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
"""Codes after which a driver looks at the member anew (SDAM, "not writable primary" errors)."""
_WITHOUT_THE_SERVER: Final = (Answer, Cut, Hang)
_MILLISECOND: Final = 0.001


class _Hangup(Exception):  # noqa: N818 (an end, not an error)
    """The connection ends here."""


@dataclass
class _Delay:
    """So many seconds, or until the faults that asked for it are cleared."""

    cleared: asyncio.Future[None]
    seconds: float = 0.0

    async def over(self) -> None:
        if self.seconds > 0:
            await asyncio.wait({self.cleared}, timeout=self.seconds)


@dataclass(eq=False)
class Connection:
    """Serves one client until either side closes."""

    member: Member
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hellos: int = 0
    """How many hellos were answered."""
    commands: int = 0
    """How many other commands were received."""
    application: str | None = None
    """The ``appname`` of its client, known once a hello that states it has been answered."""
    _is_internal: bool = False
    """It is another member's."""
    _request_ids: itertools.count[int] = field(default_factory=itertools.count)
    _upcoming: asyncio.Task[Message] | None = None

    @property
    def siblings(self) -> Collection[Connection]:
        """The open connections of the same member, this one included."""
        return self.member.connections

    @property
    def is_monitor(self) -> bool:
        """It has said hello and nothing else: a monitor, or an application's unused connection."""
        return self.hellos > 0 and self.commands == 0

    async def run(self) -> None:
        """Relay until the connection ends; raises what ``wire.read_message`` raises."""
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
                # Lost as well, where the reply is: nothing is executed either way.
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
                # A mongod's ``_isSelf``, by which it finds itself in its set, is a query as well.
                reply = wire.reply_to(request, reply.body, next(self._request_ids))
            if isinstance(verdict, Amend):
                reply = reply.with_body(self._dated({**reply.body, **verdict.fields}))
            if "topologyVersion" in reply.body and not self.member.role.passes_hellos:
                reply = reply.with_body({**reply.body, "topologyVersion": self.member.version})
            await self._send(_rewritten(verdict, reply))
            reply = await upstream.following() if reply.more_to_come else None

    async def _answer_hello(self, request: Message, upstream: Upstream) -> None:
        """Answer a hello; one that is awaited, when there is news or its time is up.

        A client that allows it gets a stream of replies until it closes or sends something else
        (SDAM monitoring, "Streaming protocol"). A server is asked for one reply at a time: without
        waiting where the member knows the news itself, else as long as the client would wait.
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
                # An error, of a server that shuts down for example, ends the stream.
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
        """The reply; the connection ends where the client closes it, or sends something else."""
        reply = asyncio.ensure_future(execution)
        try:
            await asyncio.wait({reply, self._listening()}, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                raise _Hangup
            return reply.result()
        finally:
            reply.cancel()

    async def _news(self, known: Document, milliseconds: float) -> bool:
        """Wait for another topology version than ``known``; false if the client stirs first."""
        upcoming = self._listening()
        if known == self.member.version:
            news: set[asyncio.Future[Any]] = {upcoming, self.member.changed}
            timeout = milliseconds * _MILLISECOND
            await asyncio.wait(news, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return not upcoming.done()

    def _listening(self) -> asyncio.Task[Any]:
        """The client's next request, which is read already while it awaits a hello."""
        if self._upcoming is None:
            self._upcoming = asyncio.ensure_future(wire.read_message(self.reader))
        return self._upcoming

    def _decide(
        self, request: Message, *, arriving: bool | None = None
    ) -> tuple[Verdict | None, _Delay]:
        """The first verdict that is not a delay, and the sum of the delays before it.

        ``arriving``: whether an awaited hello has just arrived, or is about to be answered; each
        interception is asked at one of the two moments. None for every other request.
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
        """Act on a verdict for which the server need not see the request."""
        if isinstance(verdict, Cut):
            raise _Hangup
        if isinstance(verdict, Hang):
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
        """The error with a new topology version, if it reports a change of the member's state.

        As on mongod: with it a driver knows that the error is news, and that the hello which
        follows at once is not older. What a secondary refuses has its version already: it changes
        nothing.
        """
        if "topologyVersion" in document or self.member.role.passes_hellos:
            return document
        codes = {document.get("code"), document.get("writeConcernError", {}).get("code")}
        if codes.isdisjoint(_STATE_CHANGES):
            return document
        self.member.announce()
        return {**document, "topologyVersion": self.member.version}

    def _lost(self, request: Message) -> Document | None:
        """What a restarted member says of a cursor from before."""
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
