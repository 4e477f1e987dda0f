"""The one server behind all members, and what it lacks to stand in for a replica set.

Some shortcomings of SecantusDB are corrected here, so that a retry finds what it would find on
mongod: it recognises a repeated write only with an equal ``maxTimeMS``, which changes under a
deadline, and only when the first one has finished; and it accepts a transaction number older than
the session's last one, and leaves NoSuchTransaction without its label. A mongod gets everything as
it was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
from dataclasses import dataclass, field
from typing import Final, Self

from . import wire
from .wire import Document, Message

_VOLATILE: Final = frozenset({"$clusterTime", "$readPreference", "maxTimeMS"})
"""What may differ between two attempts of one write."""

_NO_SUCH_TRANSACTION: Final = 251

_log = logging.getLogger(__name__)


@dataclass
class Session:
    """One logical session: its last transaction number, and whether a transaction is open."""

    lsid: Document
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    number: int = -1
    in_transaction: bool = False
    _last_write: bytes | None = None

    def refusal(self, request: Message, *, emulated: bool) -> Document | None:
        """The error for a transaction number that another write of the session has, and with an
        emulated server for one before the session's last one, as mongod has it.

        No driver should ever get the first one: mongod would answer with the record of the other
        write, and lose this one.
        """
        number = request.body["txnNumber"]
        if emulated and number < self.number:
            text = f"transaction number {number} is older than the session's {self.number}"
            return wire.error(225, "TransactionTooOld", text)
        is_other = number == self.number and self._last_write != _write(request)
        if not is_other or "autocommit" in request.body:
            return None
        text = f"transaction number {number} belongs to another write of the session"
        _log.error("%s: %s", request.command_name, text)
        return wire.error(20, "IllegalOperation", text)

    def note(self, request: Message) -> bool:
        """Remember what the request makes of the session; true if the same write, or the same end
        of a transaction, was executed before."""
        number, write = request.body["txnNumber"], _write(request)
        if number < self.number:
            return False
        is_repeat = number == self.number and write == self._last_write
        self.number = number
        if request.body.get("startTransaction"):
            self.in_transaction = True
        elif request.command_name in wire.ENDS_TRANSACTION or "autocommit" not in request.body:
            self.in_transaction = False
        self._last_write = None if request.is_inside_transaction else write
        return is_repeat


class Backend:
    """The server as all members of a deployment see it; belongs to one event loop.

    :param address: host and port of the server.
    """

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self._watches = False
        self._sessions: dict[bytes, Session] = {}
        self.is_emulated = False
        """The server is SecantusDB, and corrected."""
        self.repeats = 0
        """How many writes, and ends of transactions, arrived again after they were executed."""

    def session(self, request: Message) -> Session | None:
        """The session whose transaction number the request carries, if it carries one."""
        lsid = request.body.get("lsid")
        if not self._watches or "txnNumber" not in request.body or lsid is None:
            return None
        return self._sessions.setdefault(bytes(lsid["id"]), Session(lsid))

    def forget(self, request: Message) -> None:
        """Drop the sessions that an ``endSessions`` names."""
        for lsid in request.body.get("endSessions", ()):
            self._sessions.pop(bytes(lsid["id"]), None)

    async def connect(self) -> Upstream:
        """A connection of its own to the server; raises ``OSError``."""
        return Upstream(self, *await asyncio.open_connection(*self.address, ssl=self._tls))

    async def examine(self) -> None:
        """Find out which server it is; raises ``OSError`` where there is none."""
        async with await self.connect() as upstream:
            reply = await upstream.ask({"buildInfo": 1, "$db": "admin"})
            self.is_emulated = "secantusVersion" in reply
            self._watches = True

    async def abort_transactions(self) -> None:
        """Abort every open transaction, as the end of a primary's term does."""
        aborted = [session for session in self._sessions.values() if session.in_transaction]
        if not aborted:
            return
        async with await self.connect() as upstream:
            for session in aborted:
                async with session.lock:
                    if session.in_transaction:
                        which = {"lsid": session.lsid, "txnNumber": session.number}
                        abort = {"abortTransaction": 1, **which, "autocommit": False}
                        await upstream.ask({**abort, "$db": "admin"})
                        session.in_transaction = False


@dataclass
class Upstream:
    """One connection to the server."""

    backend: Backend
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _request_ids: itertools.count[int] = field(default_factory=itertools.count)

    async def execute(self, request: Message) -> Message | None:
        """The server's reply, or the first of several; ``None`` where none is due."""
        if request.command_name == "endSessions":
            self.backend.forget(request)
        session = self.backend.session(request)
        if session is None:
            return await self._exchange(request)
        emulated = self.backend.is_emulated
        async with session.lock if emulated else contextlib.nullcontext():
            refusal = session.refusal(request, emulated=emulated)
            if refusal is not None:
                return wire.reply_to(request, refusal, next(self._request_ids))
            self.backend.repeats += session.note(request)
            if not emulated:
                return await self._exchange(request)
            body = {key: value for key, value in request.body.items() if key != "maxTimeMS"}
            reply = await self._exchange(request.with_body(body))
            if reply is None or reply.body.get("code") != _NO_SUCH_TRANSACTION:
                return reply
            return reply.with_body({**reply.body, "errorLabels": ["TransientTransactionError"]})

    async def following(self) -> Message:
        """The reply that follows one with ``more_to_come``."""
        return await wire.read_message(self.reader)

    async def ask(self, body: Document) -> Document:
        """The reply to a command of the test bed's own."""
        reply = await self._exchange(wire.command(body, next(self._request_ids)))
        return reply.body if reply is not None else {}

    async def _exchange(self, request: Message) -> Message | None:
        self.writer.write(request.raw)
        await self.writer.drain()
        return None if request.more_to_come else await wire.read_message(self.reader)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.writer.transport.abort()


def _write(request: Message) -> bytes:
    """What the write consists of; a commit is the same one with another write concern."""
    if request.command_name in wire.ENDS_TRANSACTION:
        return request.command_name.encode()
    body = {key: value for key, value in request.body.items() if key not in _VOLATILE}
    return request.with_body(body).payload
