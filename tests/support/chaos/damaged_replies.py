"""Hypothesis strategies for bytes that are no reply, made of the bytes of one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

_HEADER = struct.Struct("<iiii")
FIELDS = {"length": 0, "responseTo": 8, "opcode": 12, "flags": 16, "size of the document": 21}
"""Where each stands. Among the opcodes is that of compressed messages."""
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


def _field(name: str, value: int) -> Damage:
    def apply(raw: bytes) -> bytes:
        changed = bytearray(raw)
        struct.pack_into("<i", changed, FIELDS[name], value)
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


damages: st.SearchStrategy[Damage] = st.one_of(
    st.just(Damage("nothing at all", lambda raw: b"")),
    st.floats(0, 1, exclude_max=True).map(_truncated),
    st.builds(_field, st.sampled_from(sorted(FIELDS)), INT32 | st.integers(-1, 64) | st.just(2012)),
    st.builds(_byte, st.floats(0, 1), st.integers(1, 255)),
    st.binary(max_size=40).map(_payload),
    st.builds(lambda junk: Damage(f"junk {junk!r}", lambda raw: junk), st.binary(min_size=1)),
    st.builds(
        lambda closes: Damage("the reply twice", lambda raw: raw + raw, closes=closes),
        st.booleans(),
    ),
)
