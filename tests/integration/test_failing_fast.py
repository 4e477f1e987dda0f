"""Operations fail at the second check where every server has a terminal cause, else they wait.

On real sockets, with certificates made here.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
import trustme
from pymongo import ReadPreference
from pymongo.errors import ServerSelectionTimeoutError
from pymongo_resilience_instrumentation.failures import causes
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.selection import selection_explained
from support import fake_servers
from support.clients import Side, wait_until
from support.fake_servers import Peer
from support.misconfigurations import MISCONFIGURATIONS, World, behind, certificate, world
from support.telemetry import Instrument
from support.wait_helpers import NOBODY, PLENTY_MS, wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, override
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.strategies import BestEffort
from pymongo_resilience.testbed import Interception, ReplicaSet

__all__ = ["world"]
pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

SHORT_MS = 200
"""Of a selection that is to take all its time."""
SOON = 5.0
"""Seconds, of the twenty that a selection has elsewhere."""


@pytest.fixture
def pymongos_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.5)


class Checks(pymongo.monitoring.ServerHeartbeatListener):
    """How often a server was looked at in vain."""

    def __init__(self) -> None:
        self.failed_checks = 0

    def started(self, event: Any) -> None: ...

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None:
        self.failed_checks += 1


def coll_of(side: Side, uri: str, **options: Any) -> Any:
    return side.client(uri, **{"serverSelectionTimeoutMS": PLENTY_MS, **options})["db"].coll


DIRECTLY = {"directConnection": True}
STREAMED = {**DIRECTLY, "serverMonitoringMode": "stream", "heartbeatFrequencyMS": 10_000}
HOPELESS: list[tuple[str, dict[str, Any], str]] = [
    ("certificate of an unknown authority", {}, "tlsCAFile"),
    ("certificate for another host", {}, "use the host names"),
    ("expired certificate", {}, "renewed"),
    ("no client certificate", {}, "tlsCertificateKeyFile"),
    ("plain text to TLS", {}, "the server's TLS mode"),
    ("TLS to a mongod without", {}, "the server's TLS mode"),
    ("plain to a mongod with TLS", {}, "tls=true"),
    ("plain to TLS", {}, "tls=true"),
    ("refused client certificate", {}, "tlsCertificateKeyFile"),
    ("refused client certificate, TLS 1.2", {}, "tlsCertificateKeyFile"),
    ("client certificate refused by a mongod", {}, "tlsCertificateKeyFile"),
    ("refused TLS version", {}, "TLS versions"),
    # Such a server answers, and no check of it fails.
    ("wrong set name", {}, '"other"'),
    ("wrong set name", DIRECTLY, "'rs0'"),
    ("wrong set name", STREAMED, "'rs0'"),
]
"""What is wrong, the client's options, and what is to be checked."""


@pytest.mark.parametrize(("name", "options", "check"), HOPELESS)
def test_fails_at_the_second_check(
    name: str, options: Any, check: str, side: Side, world: World, instrument: Instrument
) -> None:
    telemetry = instrument(metrics="all")
    symptom, planted = MISCONFIGURATIONS[name]
    answers = name == "wrong set name"
    checks = Checks()
    with planted(world) as uri:
        coll = coll_of(side, uri, event_listeners=[checks], **options)
        error, took = _fails(side, coll)
        assert checks.failed_checks >= (0 if answers else 2)
        side.do(coll.database.client.close)
    assert took < SOON
    assert type(error) is ServerSelectionTimeoutError
    assert error.terminal_cause == symptom.value
    for said in ("127.0.0.1:", symptom.says, check, "1 attempt"):
        assert said in str(error)
    (event,) = telemetry.decisions.events
    reason = RetryReason.NODE_NOT_AVAILABLE if answers else RetryReason.TLS_ERROR
    assert (event.rule, event.reason) == (Rule.TERMINAL, reason)
    (span,) = telemetry.operations()
    assert span.attributes["pymongo_resilience.outcome"] == "terminal"
    (point,) = telemetry.points("pymongo_resilience.attempts")
    assert point[0]["pymongo_resilience.outcome"] == "terminal"


TOMORROW = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
PASSING = {
    **{name: planted for name, (_, planted) in MISCONFIGURATIONS.items()},
    "resets": behind(lambda _: fake_servers.resets),
    "hangs up at TLS": behind(lambda _: fake_servers.hangs_up),
    "not valid yet": certificate(not_before=TOMORROW),
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("refused", {}),
        ("refused", {**DIRECTLY, "replicaSet": "other"}),
        ("resets", {}),
        ("hangs up at TLS", {}),
        ("silent", {"connectTimeoutMS": 50}),
        ("unknown host", {}),
        ("not valid yet", {}),
        ("not on the access list", {}),
        ("wrong SNI", {}),
        ("closed after TLS", {}),
        ("refused ciphers", {}),
        ("missing unix socket", {}),
    ],
)
def test_what_passes_by_itself_is_waited_for(
    name: str, options: dict[str, Any], side: Side, world: World, instrument: Instrument
) -> None:
    telemetry = instrument()
    # pymongo leaves the handshakes of async monitors to asyncio, which gives each a minute.
    endless = name == "silent" and side.runner is not None
    with PASSING[name](world) as uri:
        for selection_ms in (SHORT_MS, 5 * SHORT_MS, 25 * SHORT_MS):
            checks = Checks()
            listening = {"serverSelectionTimeoutMS": selection_ms, "event_listeners": [checks]}
            coll = coll_of(side, uri, **listening, **options)
            error, took = _fails(side, coll)
            assert took >= selection_ms / 1000
            assert not hasattr(error, "terminal_cause")
            side.do(coll.database.client.close)
            if endless or checks.failed_checks >= 2:
                break
        else:
            raise AssertionError("it was not looked at often enough to be given up")
    assert {event.rule for event in telemetry.decisions.events} == {Rule.SELECTION}


def _fails(side: Side, coll: Any) -> tuple[Any, float]:
    began = time.monotonic()
    with pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(coll.find_one)
    return caught.value, time.monotonic() - began


@pytest.fixture
def peer(world: World) -> Iterator[Peer]:
    """Shows the certificate of an unknown authority."""
    with Peer(world.behind(trustme.CA().issue_cert("127.0.0.1"))) as running:
        yield running


@pytest.fixture
def untrusted(world: World, peer: Peer) -> str:
    return world.tls(peer.uri)


@pytest.mark.parametrize("strategy", ["best_effort", "mongodb", "driver"])
def test_other_strategies_wait(
    strategy: str, side: Side, untrusted: str, instrument: Instrument, defaults: dict[str, Any]
) -> None:
    # With a timeout, pymongo's own loop waits until that is over.
    instrument(config_strategy=strategy, **dict.fromkeys(defaults, 5 * SHORT_MS))
    coll = coll_of(side, untrusted, serverSelectionTimeoutMS=SHORT_MS)
    error, took = _fails(side, coll)
    assert took >= SHORT_MS / 1000
    assert not hasattr(error, "terminal_cause")


def test_the_strategy_is_that_of_the_operation(
    side: Side, untrusted: str, instrument: Instrument
) -> None:
    instrument(policies={"db.patient": Policy(strategy=BestEffort())})
    coll = coll_of(side, untrusted, serverSelectionTimeoutMS=5 * SHORT_MS)
    with override(strategy=BestEffort()):
        assert not hasattr(_fails(side, coll)[0], "terminal_cause")
    assert not hasattr(_fails(side, coll.database.patient)[0], "terminal_cause")
    assert hasattr(_fails(side, coll)[0], "terminal_cause")


def test_a_server_that_recovers_is_used_at_once(
    side: Side, world: World, peer: Peer, untrusted: str, instrument: Instrument
) -> None:
    instrument()
    coll = coll_of(side, untrusted)
    for _ in range(2):
        assert hasattr(_fails(side, coll)[0], "terminal_cause")
    peer.behave = world.behind(world.authority.issue_cert("127.0.0.1"))

    def served() -> bool:
        # A check that was under way meanwhile may still be one of the two that fail.
        with contextlib.suppress(ServerSelectionTimeoutError):
            return side.do(coll.find_one) is None
        return False

    wait_until(served, timeout=SOON)
    side.do(coll.database.client.close)


def test_one_server_that_may_come_back_is_waited_for(
    side: Side, untrusted: str, instrument: Instrument
) -> None:
    instrument()
    address, _, tls = untrusted.partition("/?directConnection=true&")
    two = f"{address},{NOBODY.removeprefix('mongodb://')}?{tls}"
    coll = coll_of(side, two, serverSelectionTimeoutMS=SHORT_MS)
    error, took = _fails(side, coll)
    assert took >= SHORT_MS / 1000
    assert not hasattr(error, "terminal_cause")


@pytest.mark.usefixtures("pymongos_heartbeat")
def test_it_takes_half_a_second(side: Side, untrusted: str, instrument: Instrument) -> None:
    """The time between two checks, of which the second is enough; see bench/fail_fast.py."""
    instrument()
    assert 0.45 < _fails(side, coll_of(side, untrusted))[1] < SOON


@pytest.mark.usefixtures("pymongos_heartbeat")
def test_a_shorter_deadline_wins(side: Side, untrusted: str, instrument: Instrument) -> None:
    telemetry = instrument()
    with override(timeout_ms=150), pytest.raises(OperationTimeoutError):
        side.do(coll_of(side, untrusted).find_one)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.DEADLINE]


def test_a_transaction_is_not_repeated(side: Side, untrusted: str, instrument: Instrument) -> None:
    """pymongo labels every selection that fails as transient, and repeats for two minutes."""
    instrument()
    coll = coll_of(side, untrusted)
    begun = []

    def body(session: Any) -> Any:
        begun.append(session)
        return coll.insert_one({}, session=session)

    async def async_body(session: Any) -> Any:
        await body(session)

    session = side.do(coll.database.client.start_session)
    with pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(session.with_transaction, body if side.runner is None else async_body)
    assert hasattr(caught.value, "terminal_cause")
    assert not caught.value.has_error_label("TransientTransactionError")
    assert len(begun) == 1


class _Renamed(Interception):
    """Every member lists one of them by another name, as after a reconfiguration."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def on_hello(self, reply: dict[str, Any]) -> None:
        self.injected += 1
        hosts = ["renamed.invalid:27017" if at == self._name else at for at in reply["hosts"]]
        # Later than what the client knows.
        reply.update(hosts=hosts, setVersion=reply.get("setVersion", 1) + 1)


def test_a_member_that_was_renamed_is_not_waited_for(
    side: Side, replica_set: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    """A cursor is on one server, which a reconfiguration has taken from the client's list."""
    control[database].coll.insert_many([{} for _ in range(4)])
    telemetry = instrument()
    client = side.client(replica_set.uri, serverSelectionTimeoutMS=PLENTY_MS)
    wait_for_server(side, client)
    side.wait_for_members(client, 3)
    coll = client.get_database(database, read_preference=ReadPreference.SECONDARY).coll
    cursor = coll.find(batch_size=2)
    for _ in range(2):
        side.do(cursor.next)
    gone = "{}:{}".format(*cursor.address)
    replica_set.inject(_Renamed(gone))
    side.wait_until(lambda: cursor.address not in client.topology_description.server_descriptions())
    began = time.monotonic()
    with pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(cursor.next)
    assert time.monotonic() - began < SOON
    assert caught.value.terminal_cause == Symptom.REMOVED.value
    assert gone in str(caught.value)
    assert telemetry.decisions.events[-1].rule is Rule.TERMINAL
    replica_set.clear()


def test_a_fault_of_ours_waits_as_ever(
    side: Side,
    untrusted: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: Any) -> None:
        raise LookupError("of the test")

    # Imported during the test, it would keep the broken function.
    assert selection_explained.explain
    monkeypatch.setattr(causes, "cause_of", broken)
    instrument()
    error, took = _fails(side, coll_of(side, untrusted, serverSelectionTimeoutMS=SHORT_MS))
    assert took >= SHORT_MS / 1000
    assert not hasattr(error, "terminal_cause")
    assert "internal error in pymongo-resilience before ConditionWait" in caplog.text
