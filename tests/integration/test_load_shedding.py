"""Load shedding at work: what a client refuses itself, what it never does, and what is seen."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from opentelemetry.trace import StatusCode
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.selection import client_limits
from pymongo_resilience_instrumentation.tools.testbed import CutBefore
from support.clients import SentCommands, Side, retry_loops
from support.telemetry import Instrument
from support.transactions import run, session_of

import pymongo_resilience
from pymongo_resilience import Config, Policy, bind, override, status
from pymongo_resilience.errors import OverloadShedError, RetryReason
from pymongo_resilience.events import RetryDeclined
from pymongo_resilience.rules.limits import LoadShedder
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import Overload, ReplicaSet

pytestmark = pytest.mark.oldest

SHEDDING = {"load_shedding": True, "max_retries": 0}
LABELS = ("SystemOverloadedError", "RetryableError")


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is forgotten within a test, and the dice always show the middle."""
    monkeypatch.setattr("pymongo_resilience.rules.limits.WINDOW_S", 3600.0)
    monkeypatch.setattr(client_limits, "random", lambda: 0.5)


def overloaded(side: Side, proxy: ReplicaSet, coll: Any, rejected: int = 3) -> None:
    """The server has rejected most of what it was sent, and accepts everything from now on."""
    proxy.inject(Overload("find", times=rejected))
    for _ in range(rejected):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LoadShedder, "_refused", lambda *_: 0.0)
            with override(priority="high"), pytest.raises(OperationFailure):
                side.do(coll.find_one)


def running() -> Any:
    return PymongoResilienceInstrumentor()._runtime


def refused(side: Side, function: Any, *args: Any, **kwargs: Any) -> OverloadShedError:
    with pytest.raises(AutoReconnect) as caught:
        side.do(function, *args, **kwargs)
    assert isinstance(caught.value, OverloadShedError)
    return caught.value


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_an_operation_is_refused_before_anything_is_sent(
    timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**SHEDDING, timeout_ms=timeout_ms)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    overloaded(side, proxy, coll)
    telemetry.clear()
    error = refused(side, coll.insert_one, {})
    assert sent.named("insert") == []
    assert all(error.has_error_label(label) for label in LABELS)
    assert not error.has_error_label("TransientTransactionError")
    assert (error.server, error.priority) == (proxy.uri.split("/")[2], "normal")
    assert error.refused > 0.5
    assert "refuses" in str(error)
    [event] = telemetry.decisions.events
    assert isinstance(event, RetryDeclined)
    assert (event.reason, event.rule) == (RetryReason.LOAD_SHED, Rule.LOAD_SHEDDING)
    [counted] = [
        (attributes["pymongo_resilience.decision"], point.value)
        for attributes, point in telemetry.points("pymongo_resilience.retries")
        if attributes["pymongo_resilience.reason"] == "load_shed"
    ]
    assert counted == ("load_shedding", 1)
    [span] = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["pymongo_resilience.outcome"] == "load_shed"
    [declined] = [each for each in span.events if each.name == "retry.declined"]
    assert declined.attributes["pymongo_resilience.rule"] == "load_shedding"
    [server] = status(client).servers
    assert server.load_shed is not None
    assert server.load_shed > 0.5


def test_off_nothing_is_refused_and_nothing_installed(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(max_retries=0)
    client = side.client(proxy.uri)
    overloaded(side, proxy, client[database].coll, rejected=9)
    with override(priority="low"):
        side.do(client[database].coll.find_one)
    assert [server.load_shed for server in status(client).servers] == [None]
    assert not running().admits
    assert not [loop for loop in retry_loops() if driver.selection.SELECT in vars(loop)]


def by_override(coll: Any) -> Any:
    return coll, override(priority="high")


def by_binding(coll: Any) -> Any:
    return bind(coll, Policy(priority="high")), contextlib.nullcontext()


def by_a_rule(coll: Any) -> Any:
    return coll.database.urgent, contextlib.nullcontext()


@pytest.mark.parametrize("way", [by_override, by_binding, by_a_rule])
def test_the_priority_is_that_of_the_policy(
    way: Any, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    policies = {"*.urgent": Policy(priority="high"), "*.*": Policy(priority="low")}
    instrument(**SHEDDING, policies=policies)
    coll = side.client(proxy.uri)[database].coll
    with override(priority="high"):
        for _ in range(20):
            side.do(coll.find_one)
    overloaded(side, proxy, coll, rejected=8)
    assert refused(side, coll.find_one).priority == "low"
    urgent, block = way(coll)
    with block:
        side.do(urgent.find_one)


def test_what_has_begun_goes_on(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """A batch of a cursor, its killCursors, the rest of a transaction, and its end."""
    instrument(**SHEDDING)
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.insert_many, [{} for _ in range(4)])
    cursor = coll.find(batch_size=2)
    side.do(getattr(cursor, "__next__", None) or cursor.__anext__)
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        side.do(coll.insert_one, {}, session=session)
        overloaded(side, proxy, coll, rejected=20)
        refused(side, coll.find_one)
        assert len(side.documents(cursor)) == 3
        side.do(coll.insert_one, {}, session=session)
        side.do(session.commit_transaction)


def test_a_transaction_that_is_refused_may_be_begun_again(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dice = [0.5]
    monkeypatch.setattr(client_limits, "random", lambda: dice.pop() if dice[1:] else dice[0])
    telemetry = instrument(**SHEDDING)
    client = side.client(proxy.uri)
    coll = client[database].coll
    overloaded(side, proxy, coll)
    with session_of(side, client) as session:
        side.do(session.start_transaction)
        error = refused(side, coll.insert_one, {}, session=session)
        assert error.has_error_label("TransientTransactionError")
        side.do(session.abort_transaction)
        telemetry.clear()
        dice[:] = [1.0, 0.0]
        run(side, session, lambda given: coll.insert_one({}, session=given))
    assert [event.rule for event in telemetry.decisions.events] == [Rule.LOAD_SHEDDING]
    assert side.do(coll.count_documents, {}) == 1


def test_a_retry_that_is_refused_raises_what_the_server_said(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(load_shedding=True, base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    proxy.inject(Overload("find", times=9))
    with pytest.raises(OperationFailure) as caught:
        side.do(coll.find_one)
    assert isinstance(caught.value.__context__, OverloadShedError)
    assert caught.value.retry_rule is Rule.LOAD_SHEDDING


def test_lost_connections_are_no_rejections_and_a_refusal_takes_no_token(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**SHEDDING)
    client = side.client(proxy.uri)
    coll = client[database].coll
    for _ in range(5):
        proxy.inject(CutBefore("find"))
        side.do(coll.find_one)
    overloaded(side, proxy, coll, rejected=20)
    budget = running().limits.of(client).budget
    accounts = budget._rejected, budget._others
    for _ in range(5):
        refused(side, coll.find_one)
    assert (budget._rejected, budget._others) == accounts


def test_the_drivers_own_loop_has_none(caplog: pytest.LogCaptureFixture) -> None:
    try:
        pymongo_resilience.instrument(Config(load_shedding=True, strategy="driver"))
        assert "load shedding has no effect" in caplog.text
    finally:
        pymongo_resilience.uninstrument()
