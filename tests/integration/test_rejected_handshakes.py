"""A handshake that an overloaded server rejects: the server lives, and stays what it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
import wrapt
from pymongo.errors import OperationFailure, PyMongoError
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.recovery import woken_monitors
from support.clients import Side
from support.pool_connections import leave_idle, pool_of
from support.server_states import Unknown
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import retry_info, status
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import EmbeddedServer, Interception, Overload, RateLimit, ReplicaSet

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

USER, PASSWORD = "root", "only-for-the-tests"
DIALS = {"maxIdleTimeMS": 1, "heartbeatFrequencyMS": 60_000, "serverSelectionTimeoutMS": 2_000}
"""Each operation makes a connection of its own, and nothing but that tells of the server."""


class NoSpeculation(Interception):
    """Hellos without the first step of the login, which is then a command of its own."""

    def on_hello(self, reply: dict[str, Any]) -> None:
        reply.pop("speculativeAuthenticate", None)


@pytest.fixture(scope="module")
def locked() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(user=USER, password=PASSWORD) as running:
        yield running


@pytest.fixture
def guarded(locked: EmbeddedServer) -> Iterator[ReplicaSet]:
    with ReplicaSet(locked.address, members=1) as running:
        yield running


def connected(side: Side, servers: ReplicaSet, **options: Any) -> tuple[Any, Unknown]:
    unknown = Unknown()
    login = {"username": USER, "password": PASSWORD} if "login" in options else {}
    options.pop("login", None)
    given = {**DIALS, **login, **options}
    client = side.do(side.client, servers.uri, event_listeners=[unknown], **given)
    side.do(client.db.coll.find_one)
    leave_idle(side, client)
    return client, unknown


def generation(client: Any) -> int:
    return int(pool_of(client).gen.get_overall())


@pytest.mark.parametrize("command", ["hello", "saslStart", "saslContinue"])
@pytest.mark.parametrize("code", [462, 473])
def test_it_leaves_the_server_known_and_its_pool_alone(
    side: Side, guarded: ReplicaSet, instrument: Instrument, command: str, code: int,
    defaults: dict[str, Any],
) -> None:  # fmt: skip
    guarded.inject(NoSpeculation())
    plain, plain_unknown = connected(side, guarded, login=True)
    before = generation(plain)
    fault = Overload(command, code=code)
    guarded.inject(fault)
    with contextlib.suppress(PyMongoError):
        side.do(plain.db.coll.find_one)
    side.wait_until(lambda: plain_unknown.times)
    assert generation(plain) > before, "else pymongo has learned it, and this wrapper can go"

    instrument(base_backoff_ms=1, **defaults)
    client, unknown = connected(side, guarded, login=True)
    before = generation(client)
    fault = Overload(command, code=code)
    guarded.inject(fault)
    side.do(client.db.coll.find_one)
    assert fault.struck == 1
    assert (unknown.times, generation(client)) == (0, before)


def test_the_application_gets_its_462_as_not_sent(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    client, unknown = connected(side, proxy)
    fault = Overload("hello", times=100)
    proxy.inject(fault)
    with pytest.raises(OperationFailure) as caught:
        side.do(client.db.coll.update_many, {}, {"$inc": {"n": 1}})
    assert caught.value.code == 462
    info = retry_info(caught.value)
    assert info is not None
    assert (info.rule, info.attempts) == (Rule.ATTEMPTS, 6)
    assert {each.reason for each in telemetry.decisions.events} == {RetryReason.OVERLOADED}
    assert fault.struck >= 6
    tokens = status(client).retry_tokens
    assert tokens is not None
    assert tokens < 8, "it has spent the budget"
    proxy.clear()
    side.do(client.db.coll.find_one)
    assert unknown.times == 0


def test_once_the_overload_ends_the_next_operation_goes_through_at_once(
    side: Side, proxy: ReplicaSet, instrument: Instrument, defaults: dict[str, Any]
) -> None:
    instrument(base_backoff_ms=1, **defaults)
    client, unknown = connected(side, proxy)
    limit = RateLimit(0.001, burst=1)
    proxy.inject(limit)
    for _ in range(3):
        with contextlib.suppress(OperationFailure):
            side.do(client.db.coll.find_one)
        leave_idle(side, client)
    assert limit.struck > 0
    proxy.clear()
    with pymongo.timeout(1.0):
        side.do(client.db.coll.find_one)
    assert unknown.times == 0


def test_a_check_that_is_rejected_leaves_the_server_known(
    side: Side, proxy: ReplicaSet, instrument: Instrument, defaults: dict[str, Any]
) -> None:
    options = {"heartbeatFrequencyMS": 500, "maxIdleTimeMS": None}
    plain, plain_unknown = connected_quickly(side, proxy, **options)
    fault = Overload("hello", times=3)
    proxy.inject(fault)
    side.wait_until(lambda: fault.struck and plain_unknown.times)
    side.do(plain.close)

    instrument(**defaults)
    client, unknown = connected_quickly(side, proxy, **options)
    before = generation(client)
    fault = Overload("hello", times=3)
    proxy.inject(fault)
    side.wait_until(lambda: fault.struck == 3)
    side.do(client.db.coll.find_one)
    assert (unknown.times, generation(client)) == (0, before)


def connected_quickly(side: Side, servers: ReplicaSet, **options: Any) -> tuple[Any, Unknown]:
    unknown = Unknown()
    client = side.do(side.client, servers.uri, event_listeners=[unknown], **options)
    side.do(client.db.coll.find_one)
    return client, unknown


def test_a_rejected_connection_for_the_minimum_leaves_the_server_known(
    side: Side, proxy: ReplicaSet, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.05)
    instrument()
    client, unknown = connected(side, proxy, minPoolSize=3)
    fault = Overload("hello", times=3)
    proxy.inject(fault)
    side.wait_until(lambda: fault.struck == 3)
    side.do(client.db.coll.find_one)
    assert unknown.times == 0


@pytest.mark.parametrize(
    "options", [{"disabled_recovery": ("rejections",)}, {"config_strategy": "driver"}]
)
def test_switched_off_nothing_is_wrapped(instrument: Instrument, options: dict[str, Any]) -> None:
    before = wrapped_handlers()
    instrument(**options)
    assert wrapped_handlers() == before == set()
    pymongo_resilience.uninstrument()
    instrument()
    assert len(wrapped_handlers()) == 2


def wrapped_handlers() -> set[type]:
    name = driver.monitors.HANDLE_ERROR
    owners = driver.clients.classes("topology", "Topology")
    return {each for each in owners if isinstance(vars(each)[name], wrapt.FunctionWrapper)}


def test_a_lost_server_that_rejects_hellos_is_checked_no_more_often_than_by_pymongo() -> None:
    intervals = woken_monitors.CheckIntervals()
    intervals.note(0.0, known=True)
    intervals.note(1.0, known=False)
    assert intervals.seconds(0.5) < 0.5
    intervals.note(1.1, known=False, rejected=True)
    assert intervals.seconds(0.5) == 0.5
