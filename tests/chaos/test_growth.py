"""Nothing that the library registers or keeps grows with the number of operations, transactions, or
clients: atexit, finalizers, weak references, threads, context variables, and every container that a
module, a class or an object of ours has, found by introspection."""

from __future__ import annotations

import atexit
import contextvars
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.features import single_documents
from pymongo_resilience_instrumentation.features.hedged_reads import hedge_registry
from support.chaos import census

import pymongo_resilience
from pymongo_resilience import Config, override
from pymongo_resilience.testbed import CutAfter, Fail, Overload, ReplicaSet

pytestmark = pytest.mark.usefixtures("quick_census")
Act = Callable[[Any, int], None]
BOUND = 10
"""Entries of the tables that have a bound, which is lowered for the test."""


@pytest.fixture(params=["SDK", "no SDK"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(single_documents, "REMEMBERED", BOUND)
    monkeypatch.setattr(hedge_registry, "REMEMBERED_NAMESPACES", BOUND)
    providers: dict[str, Any] = {}
    if request.param == "SDK":
        providers = {
            "tracer_provider": TracerProvider(shutdown_on_exit=False),
            "meter_provider": MeterProvider(shutdown_on_exit=False),
        }
    config = Config(timeout_ms=20_000, base_backoff_ms=1, circuit_breaker="on")
    pymongo_resilience.instrument(config, **providers)
    yield
    pymongo_resilience.uninstrument()


def taken(client: Any) -> Counter[str]:
    """How many there are of everything; of our own objects and entries, by their place."""
    context = contextvars.copy_context()
    found: Counter[str] = Counter()
    for kind, things in census.take(context, ()).items():
        if kind not in {"descriptor", "task"}:
            found.update(f"{kind}: {name}" for name in things.values())
    found["atexit"] = atexit._ncallbacks()
    found["finalizers"] = len(weakref.finalize._registry)  # type: ignore[attr-defined]  # no public way
    found["weak references to a client"] = weakref.getweakrefcount(client)
    found["context variables"] = len(context)
    return found


def healthy(client: Any, number: int) -> None:
    coll = client.growth[f"c{number}"]
    coll.find_one({"n": number})
    if number % 10 == 0:
        coll.update_many({"_id": number}, {"$set": {"n": 1}})


def transaction(client: Any, number: int) -> None:
    with client.start_session() as session:
        session.start_transaction()
        if number % 20 == 0:
            client.growth.coll.insert_one({}, session=session)
        session.abort_transaction()


def policies(client: Any, number: int) -> None:
    with override(hedge=True, data={"number": number}, resumable=True):
        list(client.growth.coll.find({"n": number}).sort("_id").limit(3))


def cursors(client: Any, number: int) -> None:
    cursor = client.growth.coll.find(batch_size=2)
    cursor.next()
    if number % 10 == 0:  # the others are left to the garbage collector
        cursor.close()


def another_client(client: Any, number: int) -> None:
    with pymongo.MongoClient(client.uri, appname=f"number {number}") as other:
        other.growth.coll.find_one()


FAULTS = [
    lambda: CutAfter("find"), lambda: Overload("find"), lambda: Fail("update", code=20),
    lambda: Fail("find", code=2), lambda: CutAfter("getMore"),
]  # fmt: skip


def failing(client: Any, number: int) -> None:
    client.bed.inject(FAULTS[number % len(FAULTS)]())
    coll = client.growth[f"failing{number}"]
    for act in (
        coll.find_one,
        lambda: coll.update_many({"_id": 1}, {"$set": {"n": 1}}),
        lambda: list(client.growth.coll.find(batch_size=2)),
    ):
        try:
            act()
        except PyMongoError:
            continue
    client.bed.clear()


ACTS: dict[str, tuple[Act, int, int]] = {
    "operations": (healthy, 40, 25_000),
    "transactions": (transaction, 40, 100_000),
    "policies": (policies, 40, 10_000),
    "failing operations": (failing, 20, 1_000),
    "cursors": (cursors, 40, 1_000),
    "clients": (another_client, 10, 1_000),
}
"""What is done, and how often in the quick part and in the thorough one."""
LENGTHS = [
    0,
    pytest.param(
        1, marks=pytest.mark.thorough("25,000 operations, 100,000 transactions, 1,000 clients")
    ),
]


class _Client(pymongo.MongoClient[Any]):
    """With what the acts need beside it."""

    uri: str
    bed: ReplicaSet


@pytest.mark.parametrize("length", LENGTHS, ids=["quick", "long"])
@pytest.mark.parametrize("name", ACTS)
def test_nothing_grows(name: str, length: int, library: None, proxy: ReplicaSet) -> None:
    act, *lengths = ACTS[name]
    count = lengths[length]
    with _Client(proxy.uri, serverMonitoringMode="poll") as client:
        client.uri, client.bed = proxy.uri, proxy
        client.growth.coll.drop()
        client.growth.coll.insert_many([{"_id": n} for n in range(9)])
        for number in range(2 * BOUND):  # until what has a bound is full
            act(client, number)
        client._process_periodic_tasks()
        before = taken(client)
        for number in range(2 * BOUND, 2 * BOUND + count):
            act(client, number)
        client._process_periodic_tasks()
        client._process_periodic_tasks()
        grown = taken(client) - before
        client.drop_database("growth")
    # Two or three are in use at the moment by a monitor's check.
    assert {what: more for what, more in grown.items() if more > count // 4} == {}
    assert grown["atexit"] <= 0
