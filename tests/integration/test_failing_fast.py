"""Operations fail at the second check where every server has a terminal cause, else they wait.

On real sockets, with certificates made here.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymongo
import pytest
import trustme
from pymongo.errors import ServerSelectionTimeoutError
from pymongo_resilience_instrumentation.failures import causes
from pymongo_resilience_instrumentation.selection import selection_explained
from support import fake_servers
from support.clients import Side, wait_until
from support.fake_servers import Peer, with_tls
from support.telemetry import Instrument
from support.wait_helpers import NOBODY, PLENTY_MS

from pymongo_resilience import OperationTimeoutError, Policy, override
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.explanations import Symptom
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.strategies import BestEffort
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

SHORT_MS = 200
"""Of a selection that is to take all its time."""
SOON = 5.0
"""Seconds, of the twenty that a selection has elsewhere."""
TOMORROW = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)


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


@dataclass
class Trouble:
    """Somebody a client cannot use."""

    uri: str
    options: dict[str, Any] = field(default_factory=dict)
    peer: Peer | None = None

    def coll(self, side: Side, **options: Any) -> Any:
        given = {"serverSelectionTimeoutMS": PLENTY_MS, **self.options, **options}
        return side.client(self.uri, **given)["db"].coll


@dataclass
class World:
    """The authority that clients trust, its file, and the server behind all certificates."""

    authority: trustme.CA
    file: str
    server: tuple[str, int]

    @contextlib.contextmanager
    def meets(self, meet: fake_servers.Behaviour) -> Iterator[Trouble]:
        with Peer(meet) as peer:
            yield Trouble(peer.uri, {"tls": True, "tlsCAFile": self.file}, peer)

    @contextlib.contextmanager
    def shows(self, certificate: trustme.LeafCert) -> Iterator[Trouble]:
        with self.meets(self.behind(certificate)) as trouble:
            yield trouble

    def behind(
        self, certificate: trustme.LeafCert, *, requires_one: bool = False
    ) -> fake_servers.Behaviour:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        if requires_one:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return with_tls(self.server, context)


@pytest.fixture(scope="module")
def world(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> World:
    authority = trustme.CA()
    file: Path = tmp_path_factory.mktemp("tls") / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return World(authority, str(file), server.address)


@contextlib.contextmanager
def another_set(world: World, **options: Any) -> Iterator[Trouble]:
    with ReplicaSet(world.server) as running:
        host, port = running.address
        yield Trouble(f"mongodb://{host}:{port}/?replicaSet=other", options)


def known_to(world: World, **more: Any) -> trustme.LeafCert:
    return world.authority.issue_cert("127.0.0.1", **more)


Made = Callable[[World], contextlib.AbstractContextManager[Trouble]]
HOPELESS: dict[str, tuple[Made, str, RetryReason, str, int]] = {
    "an unknown authority": (
        lambda world: world.shows(trustme.CA().issue_cert("127.0.0.1")),
        "unknown_authority", RetryReason.TLS_ERROR, "tlsCAFile", 2,
    ),
    "another host's certificate": (
        lambda world: world.shows(world.authority.issue_cert("db.example.org")),
        "wrong_host_name", RetryReason.TLS_ERROR, "name the hosts", 2,
    ),
    "an expired certificate": (
        lambda world: world.shows(
            known_to(world, not_before=TOMORROW - dt.timedelta(days=9),
                     not_after=TOMORROW - dt.timedelta(days=2))
        ),
        "expired", RetryReason.TLS_ERROR, "renewed", 2,
    ),
    "no client certificate": (
        lambda world: world.meets(world.behind(known_to(world), requires_one=True)),
        "client_certificate", RetryReason.TLS_ERROR, "tlsCertificateKeyFile", 2,
    ),
    "no TLS": (
        lambda world: world.meets(fake_servers.answers_in_plain_text),
        "plain_port", RetryReason.TLS_ERROR, "the server's TLS mode", 2,
    ),
    # Such a server answers, and no check of it fails.
    "another set": (another_set, "set_name", RetryReason.NODE_NOT_AVAILABLE, '"other"', 0),
    "another set, directly": (
        lambda world: another_set(world, directConnection=True),
        "set_name", RetryReason.NODE_NOT_AVAILABLE, "'rs0'", 0,
    ),
    "another set, streamed": (
        lambda world: another_set(
            world, directConnection=True,
            serverMonitoringMode="stream", heartbeatFrequencyMS=10_000,
        ),
        "set_name", RetryReason.NODE_NOT_AVAILABLE, "'rs0'", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOPELESS)
def test_fails_at_the_second_check(
    name: str, side: Side, world: World, instrument: Instrument
) -> None:
    telemetry = instrument(metrics="all")
    made, cause, reason, check, looked = HOPELESS[name]
    checks = Checks()
    with made(world) as trouble:
        coll = trouble.coll(side, event_listeners=[checks])
        error, took = _fails(side, coll)
        assert checks.failed_checks >= looked
        side.do(coll.database.client.close)
    assert took < SOON
    assert type(error) is ServerSelectionTimeoutError
    assert error.terminal_cause == cause
    for said in (
        "127.0.0.1:",
        next(each.says for each in Symptom if each.word == cause),
        check,
        "1 attempt",
    ):
        assert said in str(error)
    (event,) = telemetry.decisions.events
    assert (event.rule, event.reason) == (Rule.TERMINAL, reason)
    (span,) = telemetry.operations()
    assert span.attributes["pymongo_resilience.outcome"] == "terminal"
    (point,) = telemetry.points("pymongo_resilience.attempts")
    assert point[0]["pymongo_resilience.outcome"] == "terminal"


PASSING: dict[str, tuple[Made, dict[str, Any]]] = {
    "refused": (lambda _: contextlib.nullcontext(Trouble(NOBODY)), {}),
    "reset": (lambda world: world.meets(fake_servers.resets), {}),
    "hangs up": (lambda world: world.meets(fake_servers.hangs_up), {}),
    "handshake timeout": (
        lambda world: world.meets(fake_servers.is_silent), {"connectTimeoutMS": 50}),
    "unresolvable": (lambda _: contextlib.nullcontext(Trouble("mongodb://nobody.invalid/")), {}),
    "not valid yet": (lambda world: world.shows(known_to(world, not_before=TOMORROW)), {}),
    "down, and a set's name": (
        lambda _: contextlib.nullcontext(
            Trouble(f"{NOBODY}?directConnection=true&replicaSet=other")
        ),
        {},
    ),
    "no TLS asked for": (
        lambda world: _without_tls(world.shows(known_to(world))), {},
    ),
}  # fmt: skip


@contextlib.contextmanager
def _without_tls(made: contextlib.AbstractContextManager[Trouble]) -> Iterator[Trouble]:
    with made as trouble:
        trouble.options = {}
        yield trouble


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_by_itself_is_waited_for(
    name: str, side: Side, world: World, instrument: Instrument
) -> None:
    telemetry = instrument()
    made, options = PASSING[name]
    # pymongo leaves the handshakes of async monitors to asyncio, which gives each a minute.
    endless = name == "handshake timeout" and side.runner is not None
    with made(world) as trouble:
        for selection_ms in (SHORT_MS, 5 * SHORT_MS, 25 * SHORT_MS):
            checks = Checks()
            listening = {"serverSelectionTimeoutMS": selection_ms, "event_listeners": [checks]}
            coll = trouble.coll(side, **listening, **options)
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
def untrusted(world: World) -> Iterator[Trouble]:
    with world.shows(trustme.CA().issue_cert("127.0.0.1")) as trouble:
        yield trouble


@pytest.mark.parametrize("strategy", ["best_effort", "mongodb", "driver"])
def test_other_strategies_wait(
    strategy: str, side: Side, untrusted: Trouble, instrument: Instrument
) -> None:
    instrument(config_strategy=strategy)
    coll = untrusted.coll(side, serverSelectionTimeoutMS=SHORT_MS)
    error, took = _fails(side, coll)
    assert took >= SHORT_MS / 1000
    assert not hasattr(error, "terminal_cause")


def test_the_strategy_is_that_of_the_operation(
    side: Side, untrusted: Trouble, instrument: Instrument
) -> None:
    instrument(policies={"db.patient": Policy(strategy=BestEffort())})
    coll = untrusted.coll(side, serverSelectionTimeoutMS=5 * SHORT_MS)
    with override(strategy=BestEffort()):
        assert not hasattr(_fails(side, coll)[0], "terminal_cause")
    assert not hasattr(_fails(side, coll.database.patient)[0], "terminal_cause")
    assert hasattr(_fails(side, coll)[0], "terminal_cause")


def test_a_server_that_recovers_is_used_at_once(
    side: Side, world: World, untrusted: Trouble, instrument: Instrument
) -> None:
    instrument()
    coll = untrusted.coll(side)
    for _ in range(2):
        assert hasattr(_fails(side, coll)[0], "terminal_cause")
    assert untrusted.peer is not None
    untrusted.peer.behave = world.behind(known_to(world))

    def served() -> bool:
        # A check that was under way meanwhile may still be one of the two that fail.
        with contextlib.suppress(ServerSelectionTimeoutError):
            return side.do(coll.find_one) is None
        return False

    wait_until(served, timeout=SOON)
    side.do(coll.database.client.close)


def test_one_server_that_may_come_back_is_waited_for(
    side: Side, untrusted: Trouble, instrument: Instrument
) -> None:
    instrument()
    untrusted.uri = untrusted.uri.partition("/?")[0] + f",{NOBODY.removeprefix('mongodb://')}"
    coll = untrusted.coll(side, serverSelectionTimeoutMS=SHORT_MS)
    error, took = _fails(side, coll)
    assert took >= SHORT_MS / 1000
    assert not hasattr(error, "terminal_cause")


@pytest.mark.usefixtures("pymongos_heartbeat")
def test_it_takes_half_a_second(side: Side, untrusted: Trouble, instrument: Instrument) -> None:
    """The time between two checks, of which the second is enough; see bench/fail_fast.py."""
    instrument()
    assert 0.45 < _fails(side, untrusted.coll(side))[1] < SOON


@pytest.mark.usefixtures("pymongos_heartbeat")
def test_a_shorter_deadline_wins(side: Side, untrusted: Trouble, instrument: Instrument) -> None:
    telemetry = instrument()
    with override(timeout_ms=150), pytest.raises(OperationTimeoutError):
        side.do(untrusted.coll(side).find_one)
    assert [event.rule for event in telemetry.decisions.events] == [Rule.DEADLINE]


def test_a_transaction_is_not_repeated(
    side: Side, untrusted: Trouble, instrument: Instrument
) -> None:
    """pymongo labels every selection that fails as transient, and repeats for two minutes."""
    instrument()
    coll = untrusted.coll(side)
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


def test_a_fault_of_ours_waits_as_ever(
    side: Side,
    untrusted: Trouble,
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
    error, took = _fails(side, untrusted.coll(side, serverSelectionTimeoutMS=SHORT_MS))
    assert took >= SHORT_MS / 1000
    assert not hasattr(error, "terminal_cause")
    assert "internal error in pymongo-resilience while a server was waited for" in caplog.text
