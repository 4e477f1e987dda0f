"""The one server behind all members of a deployment, with corrections for SecantusDB.

SecantusDB behaves differently from mongod in some ways that matter for retries. It recognizes a
repeated write only if its ``maxTimeMS`` is the same, which changes under a deadline, and only after
the first one has finished. It accepts a transaction number older than the session's last one. Its
error NoSuchTransaction lacks a label. These differences are corrected here. A mongod gets every
command exactly as it was sent.
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
"""Fields that may differ between two attempts of the same write."""

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
        """Return the error for a wrong transaction number, or None.

        A number is wrong if another write of the session has used it. With an emulated server, a
        number older than the session's last one is wrong as well, as on mongod.

        No driver should ever get the first error: mongod would answer with the result of the other
        write, and this write would be lost.
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
        """Record the effect of a request on the session. Return True if the same write, commit or
        abort has been executed before.
        """
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
    """The server as all members of a deployment see it. Belongs to one event loop.

    Args:
        address: Host and port of the server.
        tls: For a server with TLS.
    """

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls
        self._watches = False
        self._sessions: dict[bytes, Session] = {}
        self.is_emulated = False
        """The server is SecantusDB, so its behavior is corrected."""
        self.repeats = 0
        """The number of writes, commits and aborts that arrived again after they had been
        executed.
        """

    def session(self, request: Message) -> Session | None:
        """Return the session of a request that contains a transaction number, otherwise None."""
        lsid = request.body.get("lsid")
        if not self._watches or "txnNumber" not in request.body or lsid is None:
            return None
        return self._sessions.setdefault(bytes(lsid["id"]), Session(lsid))

    def forget(self, request: Message) -> None:
        """Remove the sessions that an ``endSessions`` command names."""
        for lsid in request.body.get("endSessions", ()):
            self._sessions.pop(bytes(lsid["id"]), None)

    async def connect(self) -> Upstream:
        """Open a separate connection to the server.

        Raises:
            OSError: The server cannot be reached.
        """
        return Upstream(self, *await asyncio.open_connection(*self.address, ssl=self._tls))

    async def examine(self) -> None:
        """Find out which kind of server it is.

        Raises:
            OSError: The server cannot be reached.
        """
        async with await self.connect() as upstream:
            reply = await upstream.ask({"buildInfo": 1, "$db": "admin"})
            self.is_emulated = "secantusVersion" in reply
            self._watches = True

    async def abort_transactions(self) -> None:
        """Abort every open transaction, as happens when a primary steps down."""
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
        """Return the server's reply, or the first of several; None if the request expects no
        reply.
        """
        if request.command_name == "endSessions":
            self.backend.forget(request)
        session = self.backend.session(request)
        if session is None:
            return await self._exchange(request)
        emulated = self.backend.is_emulated
        # SecantusDB recognizes a repeated write only after the first one has finished, so let them
        # follow each other.
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
        """Return the reply that follows a reply with ``more_to_come``."""
        return await wire.read_message(self.reader)

    async def ask(self, body: Document) -> Document:
        """Send a command of the test bed itself, and return the reply."""
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
    """Return the content that identifies a write. A commit with another write concern is the same
    one.
    """
    if request.command_name in wire.ENDS_TRANSACTION:
        return request.command_name.encode()
    body = {key: value for key, value in request.body.items() if key not in _VOLATILE}
    return request.with_body(body).payload
