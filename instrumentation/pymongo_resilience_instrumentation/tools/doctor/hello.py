"""Commands on a socket of one's own, without pymongo around it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import bson
from bson.codec_options import CodecOptions

if TYPE_CHECKING:
    import socket

LONGEST_MESSAGE: Final = 48_000_000
OP_MSG: Final = 2013
COMMAND_NOT_FOUND: Final = 59
_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
_HEADER = struct.Struct("<iiii")


class NotMongoDBError(Exception):
    """What answers speaks another protocol."""


def say_hello(connection: socket.socket, *, balanced: bool = False) -> dict[str, Any]:
    """Raises NotMongoDBError, or OSError."""
    command: dict[str, Any] = {"hello": 1, "$db": "admin"}
    if balanced:
        command["loadBalanced"] = True
    reply = round_trip(connection, command)
    if reply.get("code") == COMMAND_NOT_FOUND:
        reply = round_trip(connection, {"isMaster": 1, "$db": "admin"})
        reply.setdefault("isWritablePrimary", reply.get("ismaster"))
    if reply.get("ok") != 1:
        raise NotMongoDBError
    return reply


def round_trip(connection: socket.socket, command: dict[str, Any]) -> dict[str, Any]:
    body = b"\0\0\0\0\0" + bson.encode(command)
    connection.sendall(_HEADER.pack(_HEADER.size + len(body), 1, 0, OP_MSG) + body)
    length, _, _, opcode = _HEADER.unpack(_read(connection, _HEADER.size))
    if opcode != OP_MSG or not _HEADER.size < length < LONGEST_MESSAGE:
        raise NotMongoDBError
    answer = _read(connection, length - _HEADER.size)
    try:
        # Flags, the kind of the section, the document; a checksum may follow.
        size = int.from_bytes(answer[5:9], "little")
        return bson.decode(answer[5 : 5 + size], _OPTIONS)
    except bson.errors.InvalidBSON:
        raise NotMongoDBError from None


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 65536))
        if not part:
            if data:
                raise NotMongoDBError
            raise ConnectionResetError
        data += part
    return bytes(data)
