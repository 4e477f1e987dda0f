"""What the test bed stands on: a server that ends with its parent, and messages that survive."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation.tools.testbed import wire
from support.clients import wait_until


def test_messages_survive_a_changed_body() -> None:
    body = {"insert": "orders", "$db": "demo", "maxTimeMS": 5}
    message = wire.command(body, request_id=7)
    sequence = wire.parse(_with_sequence(message.raw))
    assert sequence.sequences == (b"\x0e\0\0\0documents\0",)
    changed = wire.parse(sequence.with_body({"insert": "orders", "$db": "demo"}).raw)
    assert changed.body == {"insert": "orders", "$db": "demo"}
    assert changed.sequences == sequence.sequences
    assert changed.request_id == 7


def test_a_checksum_is_dropped_with_the_bytes_it_covered() -> None:
    raw = bytearray(wire.command({"ping": 1, "$db": "admin"}).raw + b"\1\2\3\4")
    raw[0:4] = len(raw).to_bytes(4, "little")
    raw[16] |= wire.CHECKSUM_PRESENT
    message = wire.parse(bytes(raw))
    assert message.body == {"ping": 1, "$db": "admin"}
    assert message.with_body({"ping": 1}).flags & wire.CHECKSUM_PRESENT == 0


@pytest.mark.parametrize("raw", [b"", b"\x10\0\0\0", wire.command({"ping": 1}).raw[:-3]], ids=len)
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.parse(raw)


def _with_sequence(raw: bytes) -> bytes:
    longer = bytearray(raw + b"\1" + b"\x0e\0\0\0documents\0")
    longer[0:4] = len(longer).to_bytes(4, "little")
    return bytes(longer)


def test_the_server_ends_and_cleans_up_when_its_parent_is_killed() -> None:
    program = """
        import sys, time
        from pymongo_resilience.testbed import EmbeddedServer
        server = EmbeddedServer()
        server.start()
        print(server.address[1], server._directory, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        port, directory = parent.stdout.readline().split()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not _answers(int(port)))
    wait_until(lambda: not Path(directory).exists())


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    return True
