"""Servers that describe themselves absurdly: the client fares as it would without the library."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import event, example, given, strategies as st
from pymongo.errors import ServerSelectionTimeoutError
from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.tools.testbed.fault import HELLO_COMMANDS, Rewrite
from support.chaos.beside_plain_pymongo import Laboratory, Outcome, raised_by_us
from support.chaos.operations_under_attack import SEEDS
from support.clients import wait_until
from support.hostile_input import bson_values, cluster_times, examples, topology_versions

from pymongo_resilience.testbed import Interception, Reset

REMOVED = object()
PATIENCE_MS = (80, 2000)
"""Time to select a server: little at first, plenty where that may have made the difference."""
NO_HEARTBEAT_MS = 600_000
"""Servers are checked where a selection asks for it: the operation is the first to see a reset."""

addresses = st.sampled_from([
    "127.0.0.1:1", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:0", "127.0.0.1:abc",
    "[::1]:1", "[::1", ":", "", "a b:1", "/nowhere/mongodb.sock", "\u0663:1", "x" * 300,
])  # fmt: skip
hosts = (
    st.lists(addresses, max_size=3)
    | st.lists(addresses | bson_values, max_size=3)
    | addresses
    | st.just([f"127.0.0.1:{port}" for port in range(1, 31)])
)
absurd = st.sampled_from([-1, 0, 2**31, -(2**63), 2**63 - 1])
flags = st.booleans() | st.sampled_from(["yes", "false", 0, 1])
FLAGS = (
    "ok", "isWritablePrimary", "ismaster", "secondary", "hidden", "arbiterOnly", "isreplicaset",
    "helloOk", "readOnly",
)  # fmt: skip
NUMBERS = (
    "setVersion", "minWireVersion", "maxWireVersion", "maxBsonObjectSize", "maxMessageSizeBytes",
    "maxWriteBatchSize", "logicalSessionTimeoutMinutes", "connectionId",
)  # fmt: skip
ANYTHING = (
    "electionId", "localTime", "saslSupportedMechs", "serviceId", "errmsg", "operationTime"
)  # fmt: skip
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(FLAGS, flags),
    **dict.fromkeys(NUMBERS, absurd),
    **dict.fromkeys(("hosts", "passives", "arbiters"), hosts),
    **dict.fromkeys(("primary", "me"), addresses),
    **dict.fromkeys(ANYTHING, bson_values),
    "msg": st.just("isdbgrid"),
    "setName": st.sampled_from(["other", "", 7]),
    "tags": st.dictionaries(st.text("ab", max_size=2), bson_values, max_size=2),
    "lastWrite": st.fixed_dictionaries({}, optional={"lastWriteDate": bson_values}),
    "topologyVersion": topology_versions,
    "compression": st.just(["zlib", "nonsense"]),
    "code": st.sampled_from([91, 10107, 18]),
    "errorLabels": st.just(["SystemOverloadedError", "RetryableError"]),
    "$clusterTime": cluster_times,
}
changes = st.lists(
    st.sampled_from(sorted(_FIELDS)).flatmap(
        lambda name: st.tuples(st.just(name), _FIELDS[name] | bson_values | st.just(REMOVED))
    ),
    min_size=1,
    max_size=3,
)


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


@example(absurdity=[("connectionId", "7")], healthy=True, strategy="driver", direct=False)
@example(absurdity=[("maxWireVersion", [])], healthy=True, strategy="driver", direct=True)
@examples(8)
@given(
    absurdity=changes,
    healthy=st.booleans(),
    strategy=st.sampled_from(["driver", "fast_fail"]),
    direct=st.booleans(),
)
def test_any_hello(
    absurdity: list[tuple[str, Any]],
    healthy: bool,
    strategy: str,
    direct: bool,
    laboratory: Laboratory,
) -> None:
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
    event("succeeds" if plain.error is None else plain.error[0].__name__)
    telemetry = laboratory.telemetry
    assert telemetry is not None
    said = [span.attributes.get(semconv.SERVER_CONNECTION_ID, 0) for span in telemetry.spans()]
    assert {type(each) for each in said} <= {int}
    assert ours.raised is None or not raised_by_us(ours.raised)
