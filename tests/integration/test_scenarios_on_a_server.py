"""The table of ``tests/support/engine/scenarios.py`` once more, with pymongo, sockets and a server.

Real are the driver, its loop, its errors and their labels, sessions and transaction numbers, the
strikes of the test bed, and what the instrumentation reads from all of it. Not real is time: the
clock and the random numbers of the engine are those of the unit test, so nothing waits. A row's
deadline lies on that clock. pymongo's own, which it enforces on sockets and selection, is on the
real one: a generous one, but where the row says that the driver ran out of it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation import driver, runtime
from pymongo_resilience_instrumentation.clients import by_client
from pymongo_resilience_instrumentation.timeouts import bounded_waits
from support.clients import Side
from support.engine.failing_work import START
from support.engine.fake_clock import FakeClock
from support.engine.retry_strategies import quarter
from support.engine.scenarios import SCENARIOS, Scenario
from support.scenario_calls import DOCUMENTS, Maker, RealCall
from support.scenario_faults import FaultsInOrder, as_stated, is_refusal
from support.scenario_servers import SHORT_MS, Bed
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, override
from pymongo_resilience.breakers import CircuitBreaker, Permit
from pymongo_resilience.errors import RetryReason, Stage
from pymongo_resilience.events import Event, RetryScheduled
from pymongo_resilience.rules.retried_operation import Kind
from pymongo_resilience.rules.retry_rules import RetryRules, Rule
from pymongo_resilience.strategies import Failure, Operation
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

BOUND = "a transaction is refused at its beginning alone; test_circuit_breakers.py has its end"
NO_TLS = "the test bed does not speak TLS"
NO_ANSWER = "nobody hears of what happens to an unacknowledged write once it is sent"
ALWAYS_ACCEPTS = "the test bed accepts every connection; test_waits.py has a port that does not"
HAS_ROOM = "there is room in the pools of these clients; test_waits.py has one that is full"
SHED = "what a client refuses is a matter of dice; test_load_shedding.py has it"
BATCH = "it is a batch that finds no cursor, no find; test_resumable_finds.py has it"
SILENT = "a server that never answers takes real time; test_dead_peers.py has one"
NOT_ON_A_SERVER = {
    "rule 0: an unacknowledged write": NO_ANSWER,
    "rule 0: a declared unacknowledged write": NO_ANSWER,
    "rule 0: an unacknowledged write, overload": NO_ANSWER,
    "rule 1: fast_fail, an untrusted certificate": NO_TLS,
    "rule 1: best_effort, an untrusted certificate": NO_TLS,
    "rule 5: mongodb: an untrusted certificate is a network error": NO_TLS,
    "rule 2: another write, no connection says the cause, but it was sent": (
        "the two facts exclude each other: the cause is that there was none to send it on"
    ),
    "rule 2: another write, overloaded says the cause, without its labels": (
        "the two facts exclude each other: the labels are how we know"
    ),
    "rule 6: no connection in its own time, time left": ALWAYS_ACCEPTS,
    "rule 6: no connection in its own time, another write": ALWAYS_ACCEPTS,
    "rule 6: no connection in its own time, taken for overload": ALWAYS_ACCEPTS,
    "rule 6: no server on the retry, and no answer would be in time": (
        "a shortened delay leaves time for an answer, unless the round trip takes longer meanwhile"
    ),
    "rule 6: an attempt's own limit, without end": (
        "what is sent has no limit then: socketTimeoutMS is set aside under a timeout_ms of 0"
    ),
    "rule 6: no place in the pool, time left": HAS_ROOM,
    "rule 6: no place in the pool, and the time is up": HAS_ROOM,
    "rule 6: no place in the pool, without a deadline": HAS_ROOM,
    "rule 2: another write, a circuit breaker was open": (
        "a breaker that refuses says for how long; rule 7 has that"
    ),
    "rule 2: another write, the breaker says the cause, but it was sent": (
        "the two facts exclude each other: an open breaker sends nothing"
    ),
    "rule 7: a deadline: by a commit": BOUND,
    **{
        f"rule 2: {call}, {fault}": SILENT
        for call in ("a read", "another write")
        for fault in ("a dead peer", "interrupted", "its attempt's time is up")
    },
    "rule 2: a resumable find, its cursor is gone": BATCH,
    "rule 7: refused by the client itself": SHED,
    "rule 7: refused by the client itself on the retry": SHED,
}
"""Rows that no server can make true, with the reason."""
REAL = {name: row for name, row in SCENARIOS if name not in NOT_ON_A_SERVER}
GENEROUS_MS = 60_000
BY_HAND = 3600.0
"""Seconds between two runs of the background task: it must not close the cursors of one row during
another."""


@pytest.fixture(scope="module", params=[pytest.param("sync", marks=pytest.mark.oldest), "async"])
def bed(
    request: pytest.FixtureRequest, server: EmbeddedServer, control: pymongo.MongoClient[Any]
) -> Iterator[Bed]:
    database = f"scenarios_{time.monotonic_ns()}"
    control[database].coll.insert_many(DOCUMENTS)
    with ReplicaSet(server.address, members=1) as servers, pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", BY_HAND)
        side = Side(request.param, asyncio.Runner() if request.param == "async" else None)
        yield Bed(side, servers, database)
        side.close()
    control.drop_database(database)


def config_of(row: Scenario) -> dict[str, Any]:
    config: dict[str, Any] = {
        "max_retries": row.max_retries,
        "base_backoff_ms": round(row.base_backoff * 1000),
        "max_backoff_ms": round(row.max_backoff * 1000),
        "retry_budget": "off" if row.tokens is None else "tokens",
        "circuit_breaker": "always" if any(map(is_refusal, row.faults)) else "off",
    }
    if row.window is not None:
        config["timeout_ms"] = 0
    elif row.timeout is not None:
        runs_out = any(fault.timed_out for fault in row.faults)
        config["timeout_ms"] = SHORT_MS if runs_out else GENEROUS_MS
    return config


class Waiting(threading.local):
    is_asked = False


def turn_time_by_hand(
    patch: pytest.MonkeyPatch, row: Scenario, clock: FakeClock, faults: FaultsInOrder
) -> None:
    """The engine's clock and random numbers, and the three lengths of time that it gets from the
    driver.

    Whether there is a deadline at all is still the driver's to say.
    """
    patch.setattr(runtime, "ClientClock", lambda _: clock)
    patch.setattr(runtime, "RetryRules", functools.partial(RetryRules, random=quarter))
    really_left, really_to_wait = driver.csot.remaining, bounded_waits.time_to_wait
    waiting = Waiting()

    def to_wait() -> float | None:
        # An attempt has to come to its fault: its own waits are real.
        waiting.is_asked = True
        try:
            return really_to_wait()
        finally:
            waiting.is_asked = False

    def left() -> float | None:
        if really_left() is None or row.timeout is None:
            return None
        if waiting.is_asked:
            return really_left()
        return START + row.timeout - clock.now()

    patch.setattr(driver.csot, "remaining", left)
    patch.setattr(bounded_waits, "time_to_wait", to_wait)
    patch.setattr(driver.retry_loop, "server_selection_timeout", lambda loop: row.window)
    patch.setattr(driver.csot, "min_rtt", lambda: faults.min_rtt)


def let_breakers_answer(patch: pytest.MonkeyPatch, faults: FaultsInOrder) -> None:
    """As the row has it, and whether there is another server: it would have to be open just then.

    Who asks, and what becomes of the answer, is real.
    """
    elsewhere = [("elsewhere", 27017)]
    really = CircuitBreaker.try_acquire

    def answer(breaker: CircuitBreaker, *given: Any) -> Permit | float:
        refused = faults.refusal()
        if refused is None:
            return really(breaker, *given)
        assert refused.next_probe_in is not None
        patch.setattr(
            driver.selection, "choices", lambda *_: elsewhere if refused.elsewhere else []
        )
        return refused.next_probe_in

    patch.setattr(CircuitBreaker, "try_acquire", answer)


def kept_in(bucket: Any, incomplete: set[Any]) -> Any:
    """The row's own bucket in place of a new one: not full, so that successes are reported."""
    bucket._incomplete = incomplete
    incomplete.add(bucket)
    return bucket


@pytest.mark.parametrize("name", REAL)
def test_the_row_holds_on_a_server(
    name: str,
    bed: Bed,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    count_case: Callable[[str, str], None],
) -> None:
    row = REAL[name]
    clock, bucket = FakeClock(START), row.budget()
    faults = bed.inject(row, clock)
    client = bed.client(row)
    call = Maker(bed.side, client, bed.database).prepare(row)
    bed.arm(row, client, faults, call.commands)

    turn_time_by_hand(monkeypatch, row, clock, faults)
    let_breakers_answer(monkeypatch, faults)
    monkeypatch.setattr(by_client, "TokenBucket", functools.partial(kept_in, bucket))
    screened = record_screening(monkeypatch)
    telemetry = instrument(strategy=row.strategy, **config_of(row))
    pymongo_resilience.status(client)  # which makes its bucket, as a failure would
    error = error_of(call, row)
    pymongo_resilience.uninstrument()
    faults.disarm()
    bed.wait_for(client)
    call.finish()

    struck = row.faults[: row.attempts]
    found_a_server = [fault for fault in struck if not fault.selection]
    assert faults.met == found_a_server
    assert faults.passed == row.attempts - len(struck)
    assert screened == [(row.call.kind, as_stated(fault).stage) for fault in struck]
    assert [decision(event) for event in telemetry.decisions.events] == expected_decisions(row)
    assert clock.sleeps == pytest.approx([wait for wait in row.waits if wait > 0])
    took = sum(fault.takes for fault in struck)
    assert clock.now() - START == pytest.approx(sum(row.waits) + took)
    if bucket is not None and row.tokens is not None:
        assert bucket.tokens == pytest.approx(row.tokens[1])
    if row.end is None or row.call.kind is Kind.CLEANUP:
        # What a killCursors fails with, pymongo keeps to itself.
        assert error is None
    else:
        assert isinstance(error, PyMongoError)
        assert error.attempts == row.attempts
        assert isinstance(error, OperationTimeoutError) == (row.end is Rule.DEADLINE)
    count_case("scenarios on the real server", name)


def record_screening(patch: pytest.MonkeyPatch) -> list[tuple[Kind, Stage]]:
    """What the engine is told of each failed attempt."""
    told: list[tuple[Kind, Stage]] = []
    declined = RetryRules.declined

    def recorded(retry_rules: RetryRules, operation: Operation, failure: Failure) -> Any:
        told.append((operation.kind, failure.stage))
        return declined(retry_rules, operation, failure)

    patch.setattr(RetryRules, "declined", recorded)
    return told


def error_of(call: RealCall, row: Scenario) -> Exception | None:
    try:
        with override(idempotent=True) if row.call.idempotent else nullcontext():
            call.make()
    except PyMongoError as error:
        return error
    return None


Decision = tuple[RetryReason, int, float | Rule]
"""Why, after how many attempts of the command, and the delay or the rule that declined."""


def decision(event: Event) -> Decision:
    said = event.delay if isinstance(event, RetryScheduled) else event.rule
    return event.reason, event.attempt, said


def expected_decisions(row: Scenario) -> list[Any]:
    decisions = []
    attempt = 0
    for number, fault in enumerate(row.faults[: row.attempts]):
        attempt = 1 if fault.next_command else attempt + 1
        repeated = number < len(row.waits)
        said = pytest.approx(row.waits[number]) if repeated else row.end
        decisions.append((as_stated(fault).reason, attempt, said))
    return decisions


def test_what_no_server_makes_true_is_in_the_table() -> None:
    assert set(NOT_ON_A_SERVER) <= {name for name, _ in SCENARIOS}


def test_the_rows_on_a_server_do_not_shrink() -> None:
    assert len(REAL) >= 274
