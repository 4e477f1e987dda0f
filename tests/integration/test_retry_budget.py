"""The retry budget at work: whose it is, how a client asks for one, and what an empty one does."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.tools.testbed import CutBefore, Overload
from support.clients import Side, wait_until
from support.telemetry import Instrument

from pymongo_resilience import status
from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.budget import CAPACITY, RatioBudget, TokenBucket
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

SPENT = {"retry_budget": "tokens", "retry_token_capacity": 2, "base_backoff_ms": 1}
"""A budget of two retries."""


def decisions(telemetry: Any) -> list[Any]:
    return [
        "again" if isinstance(event, RetryScheduled) else event.rule
        for event in telemetry.decisions.events
    ]


def test_switched_off_there_is_none(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(retry_budget="off", retry_token_capacity=1, base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    proxy.inject(Overload("find", times=5))
    side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * 5


@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_by_default_retries_are_in_proportion_to_what_succeeds(
    timeout_ms: int | None, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1, timeout_ms=timeout_ms)
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.find_one)
    assert status(client).retry_tokens == 8
    proxy.inject(Overload("find", times=8))
    with pytest.raises(OperationFailure):
        side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * 5 + [Rule.ATTEMPTS]
    with pytest.raises(OperationFailure):
        side.do(coll.find_one)
    assert decisions(telemetry)[6:] == ["again", Rule.BUDGET]
    assert status(client).retry_tokens == 0
    for _ in range(10):
        side.do(coll.find_one)
    assert status(client).retry_tokens == 2
    proxy.inject(Overload("find", times=1))
    side.do(coll.find_one)
    assert decisions(telemetry)[8:] == ["again"]
    assert status(client).retry_tokens == 1.2


def test_lost_connections_and_elections_become_no_errors_where_it_is_spent(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=30_000, base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    for _ in range(10):
        proxy.inject(CutBefore("find"))
        side.do(coll.find_one)
    telemetry.clear()
    proxy.inject(CutBefore("find", times=3))
    side.do(coll.find_one)
    first, *others = [each.delay for each in telemetry.decisions.events]
    assert first < 0.05
    assert [0.05 <= others[0] <= 0.1, 0.2 <= others[1] <= 0.4] == [True, True]
    assert len(others) == 2
    telemetry.clear()
    proxy.inject(Overload("find", times=2))
    side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * 2, "those have an account of their own"


def test_a_collected_client_leaves_nothing(proxy: ReplicaSet, instrument: Instrument) -> None:
    instrument()
    limits = PymongoResilienceInstrumentor()._runtime.limits  # type: ignore[union-attr]
    client: Any = pymongo.MongoClient(proxy.uri, connect=False)
    assert isinstance(limits.of(client).budget, RatioBudget)
    id_ = id(client)
    client.close()
    del client

    def gone() -> bool:
        gc.collect()
        return id_ not in limits

    wait_until(gone)


def test_an_empty_budget_ends_the_retries_until_successes_fill_it_again(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000, **SPENT)
    coll = side.client(proxy.uri)[database].coll
    proxy.inject(CutBefore("find", times=4))
    side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * 4, "those cost nothing"
    telemetry.clear()
    proxy.inject(Overload("find", times=4))
    for _ in range(2):
        with pytest.raises(OperationFailure, match="too many requests"):
            side.do(coll.find_one)
    assert decisions(telemetry) == ["again", "again", Rule.BUDGET, Rule.BUDGET]
    budget = [o for o in telemetry.operations() if "budget" in str(o.attributes)]
    assert {o.attributes["pymongo_resilience.outcome"] for o in budget} == {"budget"}
    counted = [a for a, _ in telemetry.points("pymongo_resilience.retries")]
    assert "budget" in {each["pymongo_resilience.decision"] for each in counted}
    for _ in range(10):
        side.do(coll.find_one)
    telemetry.clear()
    proxy.inject(Overload("find", times=1))
    side.do(coll.find_one)
    assert decisions(telemetry) == ["again"]


def test_closing_a_cursor_spends_it_too(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(**SPENT)
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.insert_many, [{"_id": n} for n in range(5)])
    cursor = coll.find(batch_size=2)
    side.do(cursor.__next__ if side.runner is None else cursor.__anext__)
    proxy.inject(Overload("killCursors", times=2))
    side.do(cursor.close)
    assert decisions(telemetry) == ["again", "again"]
    assert {event.operation for event in telemetry.decisions.events} == {"killCursors"}


def test_each_client_has_its_own_and_one_that_was_made_before(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    before = side.client(proxy.uri)
    side.do(before.admin.command, "ping")
    telemetry = instrument(**SPENT)
    for client in (before, side.client(proxy.uri)):
        telemetry.clear()
        proxy.inject(Overload("find", times=3))
        with pytest.raises(OperationFailure):
            side.do(client[database].coll.find_one)
        assert decisions(telemetry) == ["again", "again", Rule.BUDGET]


@pytest.mark.parametrize("own", [0, 7])
def test_a_clients_own_number_of_retries_wins(
    own: int, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(base_backoff_ms=1)
    coll = side.client(proxy.uri, maxAdaptiveRetries=own)[database].coll
    proxy.inject(Overload("find", times=50))
    with pytest.raises(OperationFailure):
        side.do(coll.find_one)
    assert decisions(telemetry) == ["again"] * own + [Rule.ATTEMPTS]


def test_many_threads_spend_it_once(
    proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """As many retries as there were tokens, however many threads want one."""
    telemetry = instrument(retry_budget="tokens", retry_token_capacity=20, base_backoff_ms=1)
    with pymongo.MongoClient(proxy.uri) as client:
        client.admin.command("ping")
        proxy.inject(Overload("find", times=10_000))

        def fails(_: int) -> bool:
            try:
                client[database].coll.find_one()
            except OperationFailure:
                return True
            return False

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(fails, range(60)))
        proxy.clear()
    made = decisions(telemetry)
    assert (made.count("again"), len(made)) == (20, 20 + 60)


def test_a_child_has_it_full_and_unlocked(proxy: ReplicaSet, instrument: Instrument) -> None:
    """Also the one that a call in progress holds."""
    instrument(retry_budget="tokens")
    limits = PymongoResilienceInstrumentor()._runtime.limits  # type: ignore[union-attr]
    with pymongo.MongoClient(proxy.uri) as client:
        mine = limits.of(client).budget
        assert isinstance(mine, TokenBucket)
        assert mine.consume(3)
        mine._lock.acquire()  # as another thread of the parent's may have at the fork
        limits.reset_after_fork()
        assert limits.of(client).budget is mine
        assert mine.tokens == CAPACITY
        assert mine.consume()
