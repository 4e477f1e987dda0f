"""A server that ceases to be the primary between selecting it and sending the write to it.

The write has its server, and waits for its connection's handshake, while a heartbeat changes what
the client knows. pymongo 4.17 to 4.20 then send a retryable write as one that is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, NotPrimaryError
from pymongo_resilience_instrumentation.tools.testbed.fault import HELLO_COMMANDS, Cut, Delay
from support.clients import SentCommands, Side, wait_until
from support.telemetry import Instrument

from pymongo_resilience.errors import RetryReason
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    Election,
    Fault,
    Interception,
    ReplicaSet,
)

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]


class HeldHandshake(CutAtHandshake):
    """Holds the first handshake of the pool back until it is released."""

    def on_request(self, request: Any, connection: Any) -> Any:
        return Delay(60) if super().on_request(request, connection) else None


class CutHellos(Interception):
    """Nobody learns what the member is."""

    def on_request(self, request: Any, connection: Any) -> Any:
        return Cut() if request.command_name in HELLO_COMMANDS else None


def release(proxy: ReplicaSet) -> None:
    """Whatever a member holds back is sent; the faults that are in force stay."""
    (member,) = proxy.members

    def let_go() -> None:
        in_force = list(member.interceptions)
        member.clear()
        member.interceptions.extend(in_force)

    proxy._loop.call_soon_threadsafe(let_go)


@dataclass(frozen=True)
class Change:
    fault: Callable[[], Any]
    ends: Callable[[ReplicaSet, Any], None]
    plain: type[Exception]
    """What the application gets from plain pymongo."""


def _ends_now(proxy: ReplicaSet, fault: Any) -> None:
    fault.until = 0.0


CHANGES = {
    # The member does not take the write, and the driver cannot repeat it.
    "RSSecondary": Change(lambda: Election(60), lambda proxy, _: proxy.clear(), NotPrimaryError),
    # The member takes it, but the reply is lost.
    "Unknown": Change(CutHellos, _ends_now, AutoReconnect),
}


@pytest.mark.parametrize("instrumented", [False, True], ids=["plain", "ours"])
@pytest.mark.parametrize("becomes", CHANGES)
def test_the_write_keeps_its_txn_number(
    becomes: str,
    instrumented: bool,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    # There it fails twice: without a timeout there is one retry.
    options = {"timeout_ms": 20_000} if becomes == "Unknown" else {}
    telemetry = instrument(**options) if instrumented else None
    change = CHANGES[becomes]
    sent, answered = SentCommands(), threading.Event()
    client = side.client(proxy.uri, event_listeners=[sent], heartbeatFrequencyMS=500)
    # A monitor is there, and no connection of the pool.
    assert side.do(lambda: client.address) == proxy.address
    held = HeldHandshake()
    proxy.inject(held)
    if becomes == "Unknown":
        proxy.inject(CutAfter("insert"))

    def while_it_waits() -> None:
        wait_until(lambda: held.injected)
        fault: Fault = change.fault()
        proxy.inject(fault)
        wait_until(lambda: not client.topology_description.has_writable_server())
        release(proxy)
        wait_until(lambda: answered.is_set() or (telemetry and telemetry.decisions.events))
        change.ends(proxy, fault)

    meanwhile = threading.Thread(target=while_it_waits)
    meanwhile.start()
    try:
        if telemetry is None:
            with pytest.raises(change.plain):
                side.do(client[database].coll.insert_one, {"_id": 1})
        else:
            side.do(client[database].coll.insert_one, {"_id": 1})
    finally:
        answered.set()
        meanwhile.join()
    commands = sent.named("insert")
    carried = ["txnNumber" in command for command in commands]
    if telemetry is None:
        assert carried == [False]
        return
    assert telemetry.decisions.events[0].reason is RetryReason.SOCKET_NOT_AVAILABLE
    assert carried == ([True, True] if becomes == "Unknown" else [True])
    assert len({int(command["txnNumber"]) for command in commands}) == 1
    assert control[database].coll.count_documents({}) == 1
