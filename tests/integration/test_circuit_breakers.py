"""Circuit breakers at work: a server that keeps failing is left alone, then tried with care."""

from __future__ import annotations

import contextlib
import copy
import time
from typing import Any

import pymongo
import pytest
from pymongo import ReadPreference
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure
from pymongo_resilience_instrumentation.driver import selection
from pymongo_resilience_instrumentation.selection.client_limits import ClientBreakers
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import SentCommands, Side, wait_until
from support.injected_bugs import Functions
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, explain_selection, status
from pymongo_resilience.breakers import CircuitBreaker
from pymongo_resilience.client_status import SelectionRule
from pymongo_resilience.errors import CircuitBreakerOpenError, RetryReason
from pymongo_resilience.events import BreakerClosed, BreakerOpened, RetryDeclined, RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import CutBefore, Deployment, Fail, ReplicaSet, Slow, Standalone

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]

OPEN_S = 1.0
HOST_UNREACHABLE = 6
QUICK = {
    "circuit_breaker": "always",
    "circuit_breaker_minimum_calls": 4,
    "circuit_breaker_open_s": OPEN_S,
}
LONG = QUICK | {"circuit_breaker_open_s": 60.0}


def failing() -> Fail:
    return Fail("update", times=1000, code=HOST_UNREACHABLE)


def collection(side: Side, uri: str, database: str, **options: Any) -> Any:
    """One read from any member that is as near as another."""
    client = side.client(uri, localThresholdMS=60_000, **options)
    coll = client.get_database(database, read_preference=ReadPreference.NEAREST).coll
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, uri.count("127.0.0.1:"))
    return coll


def events_of(telemetry: Telemetry, *types: Any) -> list[Any]:
    return [event for event in telemetry.decisions.events if isinstance(event, types)]


def breaker_events(telemetry: Telemetry) -> list[Any]:
    return events_of(telemetry, BreakerOpened, BreakerClosed)


def decisions(telemetry: Telemetry) -> list[Any]:
    return events_of(telemetry, RetryScheduled, RetryDeclined)


def write(side: Side, coll: Any) -> None:
    """Fails, and is not repeated."""
    with pytest.raises(OperationFailure):
        side.do(coll.update_many, {}, {"$set": {"n": 1}})


def open_breaker(side: Side, coll: Any, servers: Deployment, telemetry: Telemetry) -> None:
    """On a deployment of one server; then nothing is wrong."""
    servers.inject(failing())
    told = len(breaker_events(telemetry))
    while len(breaker_events(telemetry)) == told:
        write(side, coll)
    servers.clear()


def opened(side: Side, proxy: ReplicaSet, database: str, telemetry: Telemetry) -> Any:
    """A collection on a set of one member, whose breaker is open, and nothing is wrong any more."""
    coll = collection(side, proxy.uri, database)
    open_breaker(side, coll, proxy, telemetry)
    return coll


def opened_on_one(
    side: Side, servers: ReplicaSet, database: str, telemetry: Telemetry, **options: Any
) -> tuple[Any, str]:
    """A collection on a set of three, and the member whose breaker is open: it still fails."""
    coll = collection(side, servers.uri, database, **options)
    servers.inject(Fail("find", times=1000, code=HOST_UNREACHABLE), on=1)

    def read() -> list[Any]:
        # Some reads reach the failing member twice, and fail.
        with contextlib.suppress(OperationFailure):
            side.do(coll.find_one)
        return breaker_events(telemetry)

    wait_until(read)
    return coll, servers.members[1].host_and_port


def test_nothing_is_sent_to_a_server_that_keeps_failing(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG)
    sent = SentCommands()
    coll = collection(side, proxy.uri, database, event_listeners=[sent])
    open_breaker(side, coll, proxy, telemetry)
    server = proxy.members[0].host_and_port
    # The other call is the ping of the connected client.
    assert breaker_events(telemetry) == [BreakerOpened(server, 4, 3, pytest.approx(60.0, abs=0.1))]
    before = len(sent.started_events)
    with pytest.raises(CircuitBreakerOpenError) as refused:
        side.do(coll.find_one)
    assert len(sent.started_events) == before
    error: Any = refused.value
    assert isinstance(error, AutoReconnect)
    assert error.timeout is False
    assert (error.server, error.attempts, error.calls, error.failures) == (server, 1, 4, 3)
    assert 50 < error.next_probe_in < 60
    facts = (
        *(server, "3 of 4", "10 s", f"{error.next_probe_in:.3f} s", "1 attempt", "find_one"),
        "PYMONGO_RESILIENCE_CIRCUIT_BREAKER=off",
    )
    assert [fact for fact in facts if fact not in str(error)] == []
    assert vars(copy.copy(error)) == vars(error)
    (declined,) = [d for d in decisions(telemetry) if d.reason is RetryReason.CIRCUIT_BREAKER_OPEN]
    assert (declined.rule, declined.server) == (Rule.BREAKER, server)
    span = telemetry.operations()[-1]
    assert span.attributes is not None
    assert span.attributes["pymongo_resilience.outcome"] == "breaker_open"


def test_it_is_tried_again_with_probes_and_used_as_before_once_they_succeed(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, caplog: Any
) -> None:
    caplog.set_level("INFO", logger="pymongo_resilience.circuit_breaker")
    telemetry = instrument(**QUICK)
    coll = opened(side, proxy, database, telemetry)
    server = proxy.members[0].host_and_port

    def works() -> bool:
        try:
            side.do(coll.find_one)
        except CircuitBreakerOpenError:
            return False
        return True

    wait_until(works)
    side.do(coll.find_one)
    assert len(breaker_events(telemetry)) == 1, "two probes are not enough"
    side.do(coll.find_one)
    assert breaker_events(telemetry) == [
        BreakerOpened(server, 4, 3, pytest.approx(OPEN_S, abs=0.1)),
        BreakerClosed(server),
    ]
    logged = [record for record in caplog.records if record.name.endswith(".circuit_breaker")]
    assert [record.levelname for record in logged] == ["WARNING", "INFO"]


def test_within_a_deadline_the_probe_is_waited_for(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**QUICK, timeout_ms=20_000)
    coll = opened(side, proxy, database, telemetry)
    began = time.monotonic()
    side.do(coll.update_many, {}, {"$set": {"n": 2}})
    assert time.monotonic() - began < 5
    scheduled = decisions(telemetry)[-1]
    assert isinstance(scheduled, RetryScheduled)
    assert scheduled.reason is RetryReason.CIRCUIT_BREAKER_OPEN
    assert 0 < scheduled.delay <= OPEN_S


def test_after_an_attempt_that_was_sent_its_error_is_raised(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """Whoever is told that nothing was sent would repeat what may have been done."""
    telemetry = instrument(**LONG, timeout_ms=20_000)
    coll = collection(side, proxy.uri, database)
    proxy.inject(CutBefore("insert", times=1000))
    with pytest.raises(AutoReconnect) as raised:
        side.do(coll.insert_one, {"_id": 1})
    assert not isinstance(raised.value, CircuitBreakerOpenError)
    assert isinstance(raised.value.__context__, CircuitBreakerOpenError)
    assert decisions(telemetry)[-1].rule is Rule.BREAKER
    span = telemetry.operations()[-1]
    assert span.attributes is not None
    assert span.attributes["pymongo_resilience.outcome"] == "breaker_open"


def test_an_application_s_own_errors_open_nothing(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG)
    coll = collection(side, proxy.uri, database)
    side.do(coll.insert_one, {"_id": 1})
    for _ in range(20):
        with pytest.raises(DuplicateKeyError):
            side.do(coll.insert_one, {"_id": 1})
        with pytest.raises(OperationFailure):
            side.do(coll.find_one, {"$no": 1})
    assert breaker_events(telemetry) == []


def test_a_slow_server_s_timeouts_count(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG)
    coll = collection(side, proxy.uri, database)
    proxy.inject(Slow(5.0))
    for _ in range(3):
        # Long enough to be sent: what was not says nothing about the server.
        with pytest.raises(OperationTimeoutError), pymongo.timeout(0.5):
            side.do(coll.find_one)
    assert [type(event) for event in breaker_events(telemetry)] == [BreakerOpened]


def test_while_another_member_is_there_an_open_one_is_left_out_until_uninstrumented(
    side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry, sent = instrument(**LONG), SentCommands()
    coll, bad = opened_on_one(side, replica_set, database, telemetry, event_listeners=[sent])
    (event,) = breaker_events(telemetry)
    assert event.server == bad
    told = len(telemetry.decisions.events)
    for _ in range(20):
        side.do(coll.find_one)
    assert telemetry.decisions.events[told:] == [], "not even asked for"
    states = {
        attributes["server.port"]: (attributes["pymongo_resilience.state"], point.value)
        for attributes, point in telemetry.points("pymongo_resilience.circuit_breaker.state")
    }
    assert states.pop(int(bad.split(":")[1])) == ("open", 1)
    assert set(states.values()) == {("closed", 1)}
    client = coll.database.client
    breakers = {each.address: each.circuit_breaker for each in status(client).servers}
    assert breakers.pop(bad) == "open"
    assert "open" not in breakers.values()
    verdicts = {each.address: each for each in explain_selection(client, ReadPreference.NEAREST)}
    assert verdicts[bad].excluded_by is SelectionRule.CIRCUIT_BREAKER
    assert "circuit breaker open, next probe in" in str(verdicts[bad])

    replica_set.clear()
    pymongo_resilience.uninstrument()
    assert {each.circuit_breaker for each in status(client).servers} == {None}

    def asked_the_bad_one() -> bool:
        side.do(coll.find_one)
        host, port = sent.started_events[-1].connection_id
        return bool(f"{host}:{port}" == bad)

    wait_until(asked_the_bad_one)


@pytest.mark.parametrize("option", ["server_selector", "Server_Selector"])
def test_an_application_s_own_selector_is_asked_first(
    option: str, side: Side, replica_set: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG)
    wanted = {member.address for member in replica_set.members[1:]}
    seen: list[int] = []

    def only_secondaries(servers: list[Any]) -> list[Any]:
        seen.append(len(servers))
        return [each for each in servers if each.address in wanted or len(servers) == 1]

    coll, bad = opened_on_one(side, replica_set, database, telemetry, **{option: only_secondaries})
    assert repr(only_secondaries) in repr(coll.database.client)
    seen.clear()
    for _ in range(10):
        side.do(coll.find_one)
    assert seen == [3] * 10, "it is shown the open one, too"
    wanted -= {replica_set.members[2].address}
    with pytest.raises(CircuitBreakerOpenError) as refused:
        side.do(coll.find_one)
    assert refused.value.server == bad
    assert refused.value.elsewhere is False, "the application wants no other"


@pytest.mark.parametrize("options", [{}, {"server_selector": None}])
def test_a_client_made_before_is_refused_and_goes_elsewhere(
    options: dict[str, Any],
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
) -> None:
    coll = collection(side, replica_set.uri, database, **options)
    telemetry = instrument(**LONG, timeout_ms=20_000)
    replica_set.inject(Fail("find", times=1000, code=HOST_UNREACHABLE), on=1)

    def refused() -> list[Any]:
        side.do(coll.find_one)
        return [
            each for each in decisions(telemetry) if each.reason is RetryReason.CIRCUIT_BREAKER_OPEN
        ]

    (event,) = wait_until(refused)
    assert isinstance(event, RetryScheduled)
    assert event.delay < OPEN_S, "the other is there now: no probe is waited for"


@pytest.mark.parametrize("mode", ["on", "always"])
def test_the_only_server_has_one_where_that_is_asked_for(
    mode: str, side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG | {"circuit_breaker": mode})
    with Standalone(server.address) as alone:
        coll = side.do(side.client, alone.uri)[database].coll
        side.do(coll.find_one)
        alone.inject(failing())
        for _ in range(3):
            write(side, coll)
        with (
            pytest.raises(CircuitBreakerOpenError) if mode == "always" else contextlib.nullcontext()
        ):
            side.do(coll.find_one)
        side.do(side.clients.pop().close)
    assert len(breaker_events(telemetry)) == (mode == "always")


def test_a_batch_of_a_cursor_goes_where_the_cursor_is(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG)
    coll = collection(side, proxy.uri, database)
    side.do(coll.insert_many, [{"_id": n} for n in range(6)])
    cursor = coll.find(batch_size=2)
    step = cursor.next
    assert side.do(step) == {"_id": 0}
    open_breaker(side, coll, proxy, telemetry)
    with pytest.raises(CircuitBreakerOpenError):
        side.do(coll.find_one)
    assert [side.do(step)["_id"] for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_transaction_is_refused_at_its_beginning_alone(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG)
    coll = collection(side, proxy.uri, database)
    side.do(coll.create_index, "n")
    session = side.do(coll.database.client.start_session)
    side.do(session.start_transaction)
    side.do(coll.insert_one, {"_id": 1}, session=session)
    open_breaker(side, coll, proxy, telemetry)
    with pytest.raises(CircuitBreakerOpenError):
        side.do(coll.find_one)
    side.do(coll.insert_one, {"_id": 2}, session=session)
    side.do(session.commit_transaction)
    side.do(session.start_transaction)
    with pytest.raises(CircuitBreakerOpenError) as refused:
        side.do(coll.insert_one, {"_id": 3}, session=session)
    assert refused.value.has_error_label("TransientTransactionError")
    side.do(session.abort_transaction)
    side.do(session.end_session)


def test_a_server_that_left_is_forgotten_and_those_of_a_closed_client(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**LONG)
    coll = opened(side, proxy, database, telemetry)
    # No member of the test bed ever leaves: it is the client's answer that is stated.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{selection.__name__}.known_addresses", lambda _: set())
        assert telemetry.points("pymongo_resilience.circuit_breaker.state") == []
    side.do(coll.find_one)
    ((attributes, _),) = telemetry.points("pymongo_resilience.circuit_breaker.state")
    assert attributes["pymongo_resilience.state"] == "closed", "it begins anew"
    # pymongo 4.20 goes on describing the servers of a closed client.
    side.do(coll.database.client.close)
    assert telemetry.points("pymongo_resilience.circuit_breaker.state") == []
    assert {each.circuit_breaker for each in status(coll.database.client).servers} == {None}


@pytest.mark.parametrize("broken", ["refusing", "try_acquire"])
def test_a_fault_of_ours_sends_what_was_to_be_sent(
    broken: str,
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    caplog: Any,
) -> None:
    instrument(**LONG)
    coll = collection(side, replica_set.uri, database)
    owner: Any = ClientBreakers if broken == "refusing" else CircuitBreaker
    with Functions().broken(getattr(owner, broken).__code__):
        side.do(coll.find_one)
    # What chooses among servers runs under the driver's lock, which a log handler may want, too.
    told = "internal error in pymongo-resilience" in caplog.text
    assert told is (broken == "try_acquire")


def test_off_nothing_is_installed(side: Side, proxy: ReplicaSet, instrument: Instrument) -> None:
    instrument()
    client = side.do(side.client, proxy.uri)
    assert client.options.server_selector.__module__ == "pymongo.server_selectors"


def test_with_pymongo_s_own_loop_they_have_no_effect(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, caplog: Any
) -> None:
    telemetry = instrument(**LONG, config_strategy="driver")
    assert "circuit_breaker has no effect" in caplog.text
    coll = collection(side, proxy.uri, database)
    proxy.inject(failing())
    for _ in range(10):
        write(side, coll)
    assert breaker_events(telemetry) == []


@pytest.mark.parametrize("timeout_ms", [None, 20_000])
def test_no_breaker_opens_for_a_write_which_can_go_nowhere_else(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument, timeout_ms: int | None
) -> None:
    """Each write succeeds at its second attempt: an open breaker would make it wait."""
    telemetry = instrument(**LONG | {"circuit_breaker": "on", "timeout_ms": timeout_ms})
    coll = side.client(proxy.uri)[database].coll
    for n in range(8):
        proxy.inject(CutBefore("insert"))
        side.do(coll.insert_one, {"_id": n})
    assert breaker_events(telemetry) == []


def test_what_the_application_s_own_selector_raises_is_raised(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(circuit_breaker="on")

    def own(servers: list[Any]) -> list[Any]:
        raise LookupError("none today")

    client = side.client(proxy.uri, server_selector=own)
    with pytest.raises(LookupError, match="none today"):
        side.do(client[database].coll.find_one)


def test_what_is_no_selector_is_the_driver_s_to_refuse(
    side: Side, server: EmbeddedServer, instrument: Instrument
) -> None:
    instrument(circuit_breaker="on")
    with pytest.raises((TypeError, ValueError), match="must be a callable"):
        side.client(server.uri, server_selector="nearest")
