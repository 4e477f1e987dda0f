"""A password that is refused twice in a row fails at once, and is tried anew once a second.

The server has access control; its monitors stream, so a server that pymongo holds for unknown would
stay so for ten seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation.failures import causes
from pymongo_resilience_instrumentation.selection import fast_fail
from pymongo_resilience_instrumentation.tools.testbed import Fail
from support.clients import SentCommands, Side, wait_until
from support.pool_connections import Closed
from support.telemetry import Instrument

from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet, Slow

pytestmark = pytest.mark.oldest

ROOT, PASSWORD = "root", "only-for-the-tests"
STREAMING: dict[str, Any] = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 10_000}
AUTHENTICATION_FAILED, UNAUTHORIZED = 18, 13
SOON = 5.0
"""Seconds; plain pymongo waits for the next hello, ten seconds."""
MANY = 8


@pytest.fixture(scope="module")
def locked() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(user=ROOT, password=PASSWORD) as running:
        yield running


@pytest.fixture(scope="module")
def keeper(locked: EmbeddedServer) -> Iterator[pymongo.MongoClient[Any]]:
    with pymongo.MongoClient[Any](locked.uri) as client:
        yield client


@pytest.fixture
def replica_set(locked: EmbeddedServer) -> Iterator[ReplicaSet]:
    with ReplicaSet(locked.address, members=1) as running:
        yield running


def client_of(side: Side, replica_set: ReplicaSet, password: str, **options: Any) -> Any:
    user = {"username": ROOT, "password": password}
    return side.client(replica_set.uri, **{**STREAMING, **user, **options})


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the password is not tried anew."""
    monkeypatch.setattr(fast_fail, "REFUSED_S", 600.0)


def refused(side: Side, client: Any) -> OperationFailure:
    with pytest.raises(OperationFailure) as caught:
        side.do(client.db.coll.find_one)
    assert type(caught.value) is OperationFailure
    assert caught.value.code == AUTHENTICATION_FAILED
    return caught.value


@pytest.mark.usefixtures("one_try")
def test_the_first_two_are_the_servers_and_the_next_come_at_once_however_many(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument()
    connections = Closed()
    client = client_of(side, replica_set, "wrong", event_listeners=[connections])
    began = time.monotonic()
    errors = [refused(side, client) for _ in range(5)]
    assert time.monotonic() - began < SOON
    told = [connections.made, *(" s ago" in str(error) for error in errors)]
    assert told == [2, False, False, True, True, True]
    assert errors[1] not in errors[2:]
    assert "authSource" in str(errors[2])
    events = telemetry.decisions.events
    assert {(each.rule, each.reason) for each in events} == {
        (Rule.TERMINAL, RetryReason.AUTHENTICATION_ERROR)
    }
    assert len(events) == 5
    many = _together(side, client)
    assert time.monotonic() - began < SOON
    assert [getattr(error, "code", error) for error in many] == [AUTHENTICATION_FAILED] * MANY
    assert connections.made == 2
    assert {
        span.attributes["pymongo_resilience.outcome"] for span in telemetry.operations()
    } == {"terminal"}  # fmt: skip


@pytest.mark.each_setup
@pytest.mark.usefixtures("one_try")
@pytest.mark.parametrize("code", [2, 11, 334, 8000])
def test_every_refusal_of_a_login_is_told_at_once(
    code: int, side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    """A mechanism that is not enabled, an unknown X.509 user, and Atlas's own code."""
    replica_set.inject(Fail("saslContinue", times=1000, code=code))
    telemetry = instrument()
    client = client_of(side, replica_set, PASSWORD)
    began = time.monotonic()
    errors = []
    for _ in range(4):
        with pytest.raises(OperationFailure) as caught:
            side.do(client.db.coll.find_one)
        errors.append(caught.value)
    assert time.monotonic() - began < SOON
    assert [error.code for error in errors] == [code] * 4
    assert causes.LOGIN_REFUSALS[code].check in str(errors[-1])
    assert {(each.rule, each.reason) for each in telemetry.decisions.events} == {
        (Rule.TERMINAL, RetryReason.AUTHENTICATION_ERROR)
    }
    replica_set.clear()


@pytest.mark.parametrize("code", [2, 11, 8000])
def test_the_same_codes_of_a_command_are_the_applications(
    code: int, side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument()
    client = client_of(side, replica_set, PASSWORD)
    replica_set.inject(Fail("find", times=2, code=code))
    for _ in range(2):
        with pytest.raises(OperationFailure):
            side.do(client.db.coll.find_one)
    assert side.do(client.db.coll.find_one) is None
    assert {each.reason for each in telemetry.decisions.events} == {RetryReason.UNKNOWN}


def test_a_password_that_becomes_right(
    side: Side, replica_set: ReplicaSet, keeper: Any, instrument: Instrument
) -> None:
    instrument()
    keeper.admin.command("createUser", f"late_{side.name}", pwd="early", roles=["root"])
    connections = Closed()
    options: dict[str, Any] = {"username": f"late_{side.name}", "event_listeners": [connections]}
    client = client_of(side, replica_set, "right", **options)
    began = time.monotonic()
    refused(side, client)
    refused(side, client)
    keeper.admin.command("updateUser", f"late_{side.name}", pwd="right")
    before = connections.made

    def answered() -> bool:
        try:
            side.do(client.db.coll.find_one)
        except OperationFailure as error:
            if error.code != AUTHENTICATION_FAILED:
                raise
            return False
        return True

    wait_until(answered)
    # For a second after the refusal nobody tries again.
    assert fast_fail.REFUSED_S < time.monotonic() - began < SOON
    assert connections.made == before + 1


def test_one_refused_login_of_one_connection_fails_one_operation(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000)
    client = client_of(side, replica_set, PASSWORD)
    side.do(client.db.coll.find_one)
    for count in (MANY, 2 * MANY):
        # As many as never before need new connections, of which one is refused; then others log in.
        replica_set.inject(Fail("saslContinue", code=AUTHENTICATION_FAILED))
        held = Slow(0.05)
        replica_set.inject(held)
        errors = _together(side, client, count)
        replica_set.clear()
        failed = [each for each in errors if each is not None]
        assert [getattr(each, "code", each) for each in failed] == [AUTHENTICATION_FAILED]
        began = time.monotonic()
        assert [each for each in _together(side, client) if each is not None] == []
        assert time.monotonic() - began < SOON


def _together(side: Side, client: Any, count: int = MANY) -> list[BaseException | None]:
    if side.runner is not None:

        async def tasks() -> Any:
            operations = (client.db.coll.find_one() for _ in range(count))
            return await asyncio.gather(*operations, return_exceptions=True)

        errors: list[BaseException | None] = side.do(tasks)
        return errors
    with ThreadPoolExecutor(count) as threads:
        results = [threads.submit(client.db.coll.find_one) for _ in range(count)]
        return [each.exception() for each in results]


def test_not_authorized_is_the_matter_of_the_operation(
    side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument()
    sent = SentCommands()
    client = side.client(replica_set.uri, **STREAMING, event_listeners=[sent])
    for _ in range(2):
        with pytest.raises(OperationFailure) as caught:
            side.do(client.db.coll.find_one)
        assert caught.value.code == UNAUTHORIZED
    assert len(sent.named("find")) == 2, "the server was asked, each time"
    (description,) = client.topology_description.server_descriptions().values()
    assert description.server_type_name == "RSPrimary"
    assert [each.reason for each in telemetry.decisions.events] == [RetryReason.ACCESS_ERROR] * 2
