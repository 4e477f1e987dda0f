"""MongoDB's wire messages, as far as a proxy must understand them.

``OP_MSG`` carries every command. ``OP_QUERY`` and ``OP_REPLY`` are still used in the first
handshake of drivers that do not know yet whether the server supports ``OP_MSG``. The proxy reads a
query as the command that it contains, and sends that on. Anything else, in particular a compressed
message, is a ``WireError``; the proxy never offers compression.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field, replace
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion

Document = dict[str, Any]

OP_REPLY: Final = 1
OP_QUERY: Final = 2004
OP_MSG: Final = 2013

CHECKSUM_PRESENT: Final = 1 << 0
MORE_TO_COME: Final = 1 << 1
EXHAUST_ALLOWED: Final = 1 << 16

ENDS_TRANSACTION: Final = frozenset({"abortTransaction", "commitTransaction"})

_HEADER = struct.Struct("<iiii")
_INT32 = struct.Struct("<i")
_UINT32 = struct.Struct("<I")
_OP_QUERY_NUMBERS = struct.Struct("<ii")
_OP_REPLY_FIELDS = struct.Struct("<iqii")
_CHECKSUM_LENGTH = 4
_BODY, _SEQUENCE = 0, 1
_MAX_MESSAGE_LENGTH = 48_000_000 + 16 * 1024

# A date outside of Python's range must pass through the proxy unchanged.
_CODEC: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)


class WireError(OSError):
    """The bytes are not a message that this module can read."""


@dataclass(frozen=True, slots=True)
class Message:
    """One wire message: its header, its command or reply document, and its raw bytes."""

    request_id: int
    response_to: int
    opcode: int
    flags: int
    body: Document = field(repr=False)
    """The command or the reply, without the document sequences of ``OP_MSG``."""
    raw: bytes = field(repr=False)
    """The whole message as it was read, including the header."""
    sequences: tuple[bytes, ...] = field(default=(), repr=False)
    """The document sequence sections of ``OP_MSG``, unchanged and in order."""

    @property
    def command_name(self) -> str:
        """The first key of the body; in a request, the name of the command."""
        return next(iter(self.body), "")

    @property
    def payload(self) -> bytes:
        """The message without its header, whose numbers differ between requests."""
        return self.raw[_HEADER.size :]

    @property
    def more_to_come(self) -> bool:
        """True for a request that expects no reply, and for a reply that another one follows
        without a request.
        """
        return bool(self.flags & MORE_TO_COME)

    @property
    def exhaust_allowed(self) -> bool:
        """True if the client accepts several replies to this one request."""
        return bool(self.flags & EXHAUST_ALLOWED)

    @property
    def is_inside_transaction(self) -> bool:
        """True for a request that belongs to a transaction and does not end it."""
        return "autocommit" in self.body and self.command_name not in ENDS_TRANSACTION

    def with_body(self, body: Document) -> Message:
        """Return the same message with another document, without the optional checksum."""
        changed = replace(self, body=body, flags=self.flags & ~CHECKSUM_PRESENT)
        return replace(changed, raw=_encode(changed))

    def for_one_reply(self) -> Message:
        """Return the same request from a client that accepts only one reply.

        Its raw bytes are still the old ones: call ``with_body`` next.
        """
        return replace(self, flags=self.flags & ~EXHAUST_ALLOWED)

    def streamed(self) -> Message:
        """Return the same reply, announcing that another one follows without a request."""
        changed = replace(self, flags=self.flags & ~CHECKSUM_PRESENT | MORE_TO_COME)
        return replace(changed, raw=_encode(changed))


def reply_to(request: Message, body: Document, request_id: int) -> Message:
    """Return a reply to ``request``, in the opcode that its client expects."""
    opcode = OP_REPLY if request.opcode == OP_QUERY else OP_MSG
    message = Message(request_id, request.request_id, opcode, 0, body, b"")
    return replace(message, raw=_encode(message))


def error(code: int, name: str, text: str, *labels: str) -> Document:
    """Return the body of a reply that refuses a command."""
    document: Document = {"ok": 0.0, "errmsg": text, "code": code, "codeName": name}
    return document | ({"errorLabels": list(labels)} if labels else {})


def command(body: Document, request_id: int = 1) -> Message:
    """Return a request in ``OP_MSG``. ``body`` names its database in ``$db``."""
    message = Message(request_id, 0, OP_MSG, 0, body, b"")
    return replace(message, raw=_encode(message))


def exchange(connection: socket.socket, body: Document) -> Document:
    """Return the reply to one command.

    Raises:
        OSError: The connection fails.
    """
    connection.sendall(command(body).raw)
    with connection.makefile("rb") as reader:
        head = reader.read(_HEADER.size)
        if not head:
            raise ConnectionResetError
        return parse(head + reader.read(_rest(head))).body


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Read one message.

    Raises:
        asyncio.IncompleteReadError: The peer has closed the connection.
        OSError: The connection has failed.
        WireError: The bytes are not a message.
    """
    head = await reader.readexactly(_HEADER.size)
    return parse(head + await reader.readexactly(_rest(head)))


def _rest(head: bytes) -> int:
    """Return the length of a message without its header."""
    length = int.from_bytes(head[: _INT32.size], "little")
    if not _HEADER.size <= length <= _MAX_MESSAGE_LENGTH:
        raise WireError(f"message length {length} is out of range")
    return length - _HEADER.size


def parse(raw: bytes) -> Message:
    """Decode one whole message.

    Raises:
        WireError: The bytes are not a message.
    """
    try:
        _, request_id, response_to, opcode = _HEADER.unpack_from(raw)
        if opcode == OP_MSG:
            return _parse_msg(raw, request_id, response_to)
        if opcode == OP_QUERY:
            # The namespace ends with a zero byte. Two numbers follow, then the command.
            end = raw.index(b"\0", _HEADER.size + _UINT32.size)
            document = raw[end + 1 + _OP_QUERY_NUMBERS.size :]
            (size,) = _INT32.unpack_from(document)
            body = {**bson.decode(document[:size], _CODEC), "$db": "admin"}
            return replace(command(body, request_id), opcode=OP_QUERY)
    except (struct.error, ValueError, bson.errors.BSONError) as exc:
        raise WireError(f"malformed message: {exc}") from exc
    raise WireError(f"opcode {opcode} is not supported")


def _parse_msg(raw: bytes, request_id: int, response_to: int) -> Message:
    (flags,) = _UINT32.unpack_from(raw, _HEADER.size)
    position = _HEADER.size + _UINT32.size
    end = len(raw) - (_CHECKSUM_LENGTH if flags & CHECKSUM_PRESENT else 0)
    body: Document | None = None
    sequences: list[bytes] = []
    while position < end:
        kind = raw[position]
        (size,) = _INT32.unpack_from(raw, position + 1)
        section = raw[position + 1 : position + 1 + size]
        if len(section) != size or size <= _INT32.size:
            raise WireError(f"section length {size} is out of range")
        if kind == _BODY:
            body = bson.decode(section, _CODEC)
        elif kind == _SEQUENCE:
            sequences.append(section)
        else:
            raise WireError(f"section kind {kind} is not supported")
        position += 1 + size
    if body is None:
        raise WireError("the message has no body")
    return Message(request_id, response_to, OP_MSG, flags, body, raw, tuple(sequences))


def _encode(message: Message) -> bytes:
    document = bson.encode(message.body, codec_options=_CODEC)
    opcode = OP_REPLY if message.opcode == OP_REPLY else OP_MSG
    if opcode == OP_REPLY:
        payload = _OP_REPLY_FIELDS.pack(message.flags, 0, 0, 1) + document
    else:
        sections = [bytes([_BODY]) + document]
        sections += [bytes([_SEQUENCE]) + sequence for sequence in message.sequences]
        payload = _UINT32.pack(message.flags) + b"".join(sections)
    length = _HEADER.size + len(payload)
    return _HEADER.pack(length, message.request_id, message.response_to, opcode) + payload
