"""Hypothesis strategies for bytes that are no reply, made of the bytes of one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

_HEADER = struct.Struct("<iiii")
OP_COMPRESSED = 2012
INT32 = st.integers(-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Damage:
    """What is sent in place of a reply; ``closes`` where the client would wait for more."""

    name: str
    apply: Callable[[bytes], bytes]
    closes: bool = True

    def __call__(self, raw: bytes) -> bytes:
        return self.apply(raw)

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _truncated(share: float) -> Damage:
    return Damage(f"the first {share:.0%}", lambda raw: raw[: int(len(raw) * share)])


def _field(offset: int, name: str, value: int) -> Damage:
    def apply(raw: bytes) -> bytes:
        changed = bytearray(raw)
        struct.pack_into("<i", changed, offset, value)
        return bytes(changed)

    return Damage(f"{name} {value}", apply)


def _byte(share: float, mask: int) -> Damage:
    def apply(raw: bytes) -> bytes:
        changed = bytearray(raw)
        changed[_HEADER.size + int((len(raw) - _HEADER.size - 1) * share)] ^= mask
        return bytes(changed)

    return Damage(f"byte at {share:.2%} of the payload, changed by {mask:#x}", apply)


def _payload(payload: bytes) -> Damage:
    def apply(raw: bytes) -> bytes:
        _, request_id, response_to, opcode = _HEADER.unpack_from(raw)
        return _HEADER.pack(16 + len(payload), request_id, response_to, opcode) + payload

    return Damage(f"payload {payload!r}", apply)


def _compressed(compressor: int, honest: bool, size: int | None) -> Damage:
    def apply(raw: bytes) -> bytes:
        _, request_id, response_to, opcode = _HEADER.unpack_from(raw)
        payload = raw[_HEADER.size :]
        body = zlib.compress(payload) if honest else payload
        told = len(payload) if size is None else size
        head = struct.pack("<iiB", opcode, told, compressor)
        return _HEADER.pack(25 + len(body), request_id, response_to, OP_COMPRESSED) + head + body

    return Damage(f"compressed by {compressor}, size {size}, honest {honest}", apply)


damages: st.SearchStrategy[Damage] = st.one_of(
    st.just(Damage("nothing at all", lambda raw: b"")),
    st.floats(0, 1, exclude_max=True).map(_truncated),
    st.builds(_field, st.just(0), st.just("length"), INT32 | st.integers(-1, 64)),
    st.builds(_field, st.just(8), st.just("responseTo"), INT32),
    st.builds(
        _field,
        st.just(12),
        st.just("opcode"),
        st.sampled_from([0, 1, 1000, 2004, 2010, 2012, 2014]),
    ),
    st.builds(
        _field, st.just(16), st.just("flags"), st.sampled_from([1, 2, 3, 4, 1 << 15, 1 << 16])
    ),
    st.builds(_field, st.just(21), st.just("size of the document"), INT32 | st.integers(-1, 64)),
    st.builds(_byte, st.floats(0, 1), st.integers(1, 255)),
    st.binary(max_size=40).map(_payload),
    st.builds(lambda junk: Damage(f"junk {junk!r}", lambda raw: junk), st.binary(min_size=1)),
    st.builds(
        lambda closes: Damage("the reply twice", lambda raw: raw + raw, closes=closes),
        st.booleans(),
    ),
    st.builds(
        _compressed,
        st.sampled_from([0, 1, 2, 3, 9, 255]),
        st.booleans(),
        st.none() | st.sampled_from([-1, 0, 1, 48_000_000]),
    ),
)
