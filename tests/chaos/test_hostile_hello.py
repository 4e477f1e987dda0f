"""Servers that describe themselves absurdly: the client fares as it would without the library."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.tools.testbed.fault import HELLO_COMMANDS, Rewrite
from support.chaos.beside_plain_pymongo import Laboratory, Outcome, raised_by_us
from support.chaos.operations_under_attack import SEEDS
from support.clients import wait_until

from pymongo_resilience.testbed import Interception, Reset

REMOVED = object()
PATIENCE_MS = (80, 2000)
"""Time to select a server: little at first, plenty where that may have made the difference."""
NO_HEARTBEAT_MS = 600_000
"""Servers are checked where a selection asks for it: the operation is the first to see a reset."""

NUMBERS = (
    "setVersion", "minWireVersion", "maxWireVersion", "maxBsonObjectSize", "maxMessageSizeBytes",
    "maxWriteBatchSize", "logicalSessionTimeoutMinutes", "connectionId",
)  # fmt: skip
ABSURD: dict[str, list[tuple[str, Any]]] = {
    "text for a number": [("connectionId", "7")],
    "a list for a number": [("maxWireVersion", [])],
    "numbers past 64 bits' half": [(name, 2**63 - 1) for name in NUMBERS],
    "negative numbers": [(name, -(2**63)) for name in NUMBERS],
    "nothing that is needed": [(name, REMOVED) for name in ("maxWireVersion", "me", "hosts")],
    "text for what is true": [("isWritablePrimary", "yes"), ("ok", "false"), ("secondary", 1)],
    "hosts that are no addresses": [
        ("hosts", ["127.0.0.1:abc", "[::1", "", "\u0663:1", "x" * 300])
    ],
    "hosts that are no text": [("hosts", [None, 7, {"a": 1}]), ("passives", 5)],
    "very many hosts": [("hosts", [f"127.0.0.1:{port}" for port in range(1, 31)])],
    "another primary": [("primary", "127.0.0.1:1"), ("me", "a b:1")],
    "another set": [("setName", 7), ("setVersion", "no"), ("electionId", "no")],
    "a router": [("msg", "isdbgrid"), ("setName", REMOVED)],
    "odd tags and dates": [("tags", {"a": [1]}), ("lastWrite", {"lastWriteDate": "now"})],
    "an odd version": [("topologyVersion", {"processId": 1, "counter": "no"})],
    "an odd time": [("$clusterTime", {"clusterTime": 5}), ("localTime", None)],
    "an error": [("ok", 0), ("code", 91), ("errorLabels", ["RetryableError"])],
    "an odd compression": [("compression", ["zlib", "nonsense"])],
}
"""What is changed in every hello, by its fields."""


class Absurd(Interception):
    """Sends every hello with some of its fields changed or removed."""

    def __init__(self, changes: list[tuple[str, Any]]) -> None:
        super().__init__()
        self._changes = changes

    def on_request(self, request: Any, connection: Any) -> Rewrite | None:
        return Rewrite(self._rewritten) if request.command_name in HELLO_COMMANDS else None

    def _rewritten(self, reply: Any) -> bytes:
        body = dict(reply.body)
        for name, value in self._changes:
            if value is REMOVED:
                body.pop(name, None)
            else:
                body[name] = value
        raw: bytes = reply.with_body(body).raw
        return raw


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks for every host that a hello names."""
    real = socket.getaddrinfo

    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "::1"):
            raise socket.gaierror(socket.EAI_NONAME, "no such host in this test")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", guarded)


@pytest.fixture(autouse=True)
def monitors_die_of_the_driver_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A monitor of pymongo 4.20 ends where it cannot compare what a hello says."""
    died: list[BaseException] = []

    def remember(args: Any) -> None:
        died.append(args.exc_value)

    monkeypatch.setattr(threading, "excepthook", remember)
    yield
    assert not [error for error in died if raised_by_us(error)]


@pytest.fixture
def laboratory(side: Any, proxy: Any, database: str, control: Any, instrument: Any) -> Laboratory:
    control[database].seeds.insert_many(SEEDS)
    return Laboratory(side, proxy, database, instrument)


def succeeds(work: Callable[[], Any]) -> bool:
    with contextlib.suppress(ServerSelectionTimeoutError):
        work()
        return True
    return False


def fare(laboratory: Laboratory, absurdity: list[tuple[str, Any]], *, healthy: bool) -> Outcome:
    """A read and a write with a server that became absurd, or was so from the start."""

    def work() -> Any:
        coll = client[laboratory.database].seeds
        found = laboratory.side.do(coll.find_one, {"_id": 1}, {"_id": 1})
        changed = laboratory.side.do(coll.update_one, {"_id": 1}, {"$set": {"n": 0}})
        return found, changed.acknowledged

    client = None
    try:
        if not healthy:
            laboratory.proxy.inject(Absurd(absurdity))
        client = laboratory.client()
        if healthy:
            # A selection that finds no server yet asks for another check, half a second later.
            laboratory.side.do(client._get_topology)
            direct = laboratory.options.get("directConnection")
            members = 1 if direct else len(laboratory.proxy.members)
            laboratory.side.wait_for_members(client, members)
            wait_until(lambda: succeeds(work))  # or finds none yet, with as little patience
            laboratory.proxy.inject(Absurd(absurdity))
            laboratory.proxy.inject(Reset())
        outcome = laboratory.outcome(work)
        laboratory.collect()
        return outcome
    finally:
        laboratory.proxy.clear()
        if client is not None:
            laboratory.close(client)


def alike(ours: Outcome, plain: Outcome) -> bool:
    """The text of a failed selection tells round-trip times and what failed last: chance."""
    if isinstance(ours.raised, ServerSelectionTimeoutError):
        return isinstance(plain.raised, ServerSelectionTimeoutError)
    return ours == plain


@pytest.mark.parametrize(
    ("strategy", "direct"), [("driver", True), ("fast_fail", False)], ids=["driver", "ours"]
)
@pytest.mark.parametrize("healthy", [True, False], ids=["at first", "from the start"])
@pytest.mark.parametrize("name", ABSURD)
def test_any_hello(
    name: str, healthy: bool, strategy: str, direct: bool, laboratory: Laboratory
) -> None:
    absurdity = ABSURD[name]
    for patience in PATIENCE_MS:
        laboratory.options = {
            "serverSelectionTimeoutMS": patience,
            "heartbeatFrequencyMS": NO_HEARTBEAT_MS,
        }
        if direct:
            laboratory.options |= {"directConnection": True, "replicaSet": None}
        plain = fare(laboratory, absurdity, healthy=healthy)
        with laboratory.instrumented(strategy):
            ours = fare(laboratory, absurdity, healthy=healthy)
        # A retry is one more chance, and the error that it ends with may be the earlier one.
        if laboratory.scheduled() or alike(ours, plain):
            break
    else:
        raise AssertionError(f"{ours} with the library, {plain} without")
    telemetry = laboratory.telemetry
    assert telemetry is not None
    said = [span.attributes.get(semconv.SERVER_CONNECTION_ID, 0) for span in telemetry.spans()]
    assert {type(each) for each in said} <= {int}
    assert ours.raised is None or not raised_by_us(ours.raised)
