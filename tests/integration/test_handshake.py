"""What the hello says that arrives on the wire: the flag of client backpressure is the driver's."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed.fault import HELLO_COMMANDS
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience.testbed import Interception, ReplicaSet

pytestmark = pytest.mark.oldest

FLAG: dict[tuple[int, ...], Any] = {(4, 17): True, (4, 19): "2", (4, 20): "2"}
"""By version; what the text asks for is True, and newer drivers tell a version of it."""


class Hellos(Interception):
    """The first hello of every connection."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []

    def on_request(self, request: Any, connection: Any) -> None:
        if request.command_name in HELLO_COMMANDS and connection.hellos == 0:
            self.bodies.append(request.body)


@pytest.mark.parametrize("instrumented", [False, True], ids=["plain", "ours"])
def test_every_connection_says_that_the_client_backs_off(
    instrumented: bool, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    if instrumented:
        instrument()
    hellos = Hellos()
    proxy.inject(hellos)
    side.do(side.client(proxy.uri).admin.command, "ping")
    # One of the monitor, and one of the pool.
    assert len(hellos.bodies) >= 2
    flags = [body.get("backpressure") for body in hellos.bodies]
    assert None not in flags
    expected = FLAG.get(pymongo.version_tuple[:2])
    if expected is not None:
        assert flags == [expected] * len(flags)
        assert all(type(flag) is type(expected) for flag in flags)
