"""retry_transaction(): functions that are repeated as with_transaction repeats its callback."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pymongo
import pytest
from pymongo.errors import DuplicateKeyError, PyMongoError, WriteConcernError
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import LOW, DriversTime, drivers_time, run as with_transaction, session_of
from support.wait_helpers import wait_for_server

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, override, retry_transaction
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import CutAfter, CutBefore, Fail, FailWriteConcern, ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest
TRANSIENT: dict[str, Any] = {"code": 112, "labels": ["TransientTransactionError"]}
UNKNOWN: dict[str, Any] = {"code": 112, "labels": ["UnknownTransactionCommitResult"]}


class Interruption(BaseException):
    """As KeyboardInterrupt, which would end the test run."""


def run(side: Side, client: Any, body: Callable[[Any], Any], **options: Any) -> Any:
    async def async_body(session: Any) -> Any:
        result = body(session)
        return await result if inspect.isawaitable(result) else result

    return side.do(
        retry_transaction(client, **options)(body if side.runner is None else async_body)
    )


@pytest.mark.parametrize("instrumented", [True, False])
def test_it_repeats_what_with_transaction_repeats(
    instrumented: bool, side: Side, proxy: ReplicaSet, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    if not instrumented:
        pymongo_resilience.uninstrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    sent.started_events.clear()
    proxy.inject(Fail("insert", **TRANSIENT))
    proxy.inject(Fail("commitTransaction", 2, **UNKNOWN))
    run(side, client, lambda session: client[database].coll.insert_one({}, session=session))
    assert [each.command_name for each in sent.started_events] == [
        "insert", "abortTransaction", "insert", *["commitTransaction"] * 3
    ]  # fmt: skip
    assert control[database].coll.count_documents({}) == 1


def test_what_is_not_transient_is_raised_and_the_transaction_aborted(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[database].coll.insert_one({"_id": 0})
    client = side.client(proxy.uri)
    coll, seen = client[database].coll, []

    def sync_body(session: Any) -> None:
        seen.append(session)
        coll.insert_one({"_id": 1}, session=session)
        coll.insert_one({"_id": 0}, session=session)

    async def async_body(session: Any) -> None:
        seen.append(session)
        await coll.insert_one({"_id": 1}, session=session)
        await coll.insert_one({"_id": 0}, session=session)

    with pytest.raises(DuplicateKeyError):
        run(side, client, sync_body if side.runner is None else async_body)
    assert [(each.in_transaction, each.has_ended) for each in seen] == [(False, True)]
    assert control[database].coll.count_documents({}) == 1


@pytest.mark.parametrize("error", [LookupError, Interruption, asyncio.CancelledError])
def test_however_the_block_ends_so_do_the_transaction_and_its_session(
    error: type[BaseException], side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    client, seen = side.client(proxy.uri), []

    def body(session: Any) -> None:
        seen.append(session)
        raise error

    with pytest.raises(error):
        run(side, client, body)
    assert [(each.in_transaction, each.has_ended) for each in seen] == [(False, True)]


def test_all_attempts_have_one_deadline(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri)
    proxy.inject(Fail("insert", 100, **TRANSIENT))
    runs: list[Any] = []

    def body(session: Any) -> Any:
        runs.append(session)
        if len(runs) == 3:
            drivers_time.passed += LOW / 1000
        return client[database].coll.insert_one({}, session=session)

    with override(timeout_ms=LOW), pytest.raises(OperationTimeoutError):
        run(side, client, body)
    assert len(runs) == 3
    assert all(each.has_ended and not each.in_transaction for each in runs)
    assert control[database].coll.count_documents({}) == 0


@pytest.mark.parametrize("name", ["read_concern", "write_concern", "max_commit_time_ms", "wrong"])
def test_an_option_that_no_transaction_has_is_refused_before_the_first_attempt(
    name: str, side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    wrong: dict[str, Any] = {name: "1"}
    with pytest.raises(TypeError, match=name):
        retry_transaction(side.client(proxy.uri), **wrong)


def test_each_call_is_a_transaction_with_the_arguments_of_its_own(
    side: Side, proxy: ReplicaSet, database: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    control[database].create_collection("coll")
    client = side.client(proxy.uri)
    coll, runs = client[database].coll, []
    if side.runner is None:

        @retry_transaction(client)
        def insert(session: Any, number: int, *, name: str) -> Any:
            """Insert it."""
            runs.append(number)
            coll.insert_one({"_id": number, "name": name}, session=session)
            return number
    else:

        @retry_transaction(client)
        async def insert(session: Any, number: int, *, name: str) -> Any:
            """Insert it."""
            runs.append(number)
            await coll.insert_one({"_id": number, "name": name}, session=session)
            return number

    proxy.inject(Fail("insert", 1, **TRANSIENT))
    assert [side.do(insert, 1, name="a"), side.do(insert, 2, name="b")] == [1, 2]
    assert runs == [1, 1, 2]
    assert (insert.__name__, insert.__doc__) == ("insert", "Insert it.")
    found = {each["_id"]: each["name"] for each in control[database].coll.find()}
    assert found == {1: "a", 2: "b"}


def test_what_it_cannot_make_a_transaction_is_refused(
    side: Side, proxy: ReplicaSet, instrument: Instrument
) -> None:
    instrument()
    with pytest.raises(TypeError, match="MongoClient"):
        retry_transaction("mongodb://")
    decorate = retry_transaction(side.client(proxy.uri))

    async def coroutine(session: Any) -> None: ...
    def generator(session: Any) -> Any:
        yield

    wrong: list[Any] = [generator, coroutine if side.runner is None else str]
    for each in wrong:
        with pytest.raises(TypeError, match=r"needs an? \w+ function"):
            decorate(each)


@pytest.mark.parametrize("within", [nullcontext, lambda: pymongo.timeout(LOW / 1000)])
def test_all_attempts_have_one_session_whose_numbers_grow(
    within: Any, side: Side, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    """So the server ends a transaction whose abort never reached it, and that takes no time."""
    instrument()
    control[database].coll.insert_one({"_id": 1, "n": 0})
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    sent.started_events.clear()
    runs: list[Any] = []

    def lose() -> None:
        runs.append(1)
        if len(runs) == 1:
            proxy.inject(CutAfter("update"))
            proxy.inject(CutBefore("abortTransaction", times=10_000))

    def body(session: Any) -> Any:
        lose()
        return client[database].coll.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)

    with within():
        run(side, client, body)
    assert control[database].coll.find_one() == {"_id": 1, "n": 1}
    updates = sent.named("update")
    assert len({each["lsid"]["id"] for each in updates}) == 1
    assert len(updates) > 1
    assert [each["txnNumber"] for each in updates] == list(range(1, len(updates) + 1))
    proxy.clear()


OVERLOADED: dict[str, Any] = {
    "code": 462,
    "labels": ["RetryableError", "SystemOverloadedError", "TransientTransactionError"],
}


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("name", ["no server", "overload"])
def test_what_is_final_by_the_rules_is_not_repeated_with_its_transaction(
    name: str, atomic: bool, side: Side, proxy: ReplicaSet, database: str, control: Any,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument(base_backoff_ms=1)
    control[database].coll.insert_one({"_id": 1, "n": 0})
    gone: list[bool] = []
    client = side.client(
        proxy.uri, event_listeners=[sent], serverSelectionTimeoutMS=300,
        server_selector=lambda servers: [] if gone else servers,
    )  # fmt: skip
    coll, runs = client[database].coll, []
    wait_for_server(side, client)
    if name == "overload":
        proxy.inject(Fail("update", 1_000, **OVERLOADED))
    else:
        gone.append(True)

    def body(session: Any) -> Any:
        runs.append(session)
        return coll.update_many({}, {"$inc": {"n": 1}}, session=session)

    def write() -> None:
        if atomic:
            with override(atomic=True):
                side.do(coll.update_many, {}, {"$inc": {"n": 1}})
        else:
            run(side, client, body)

    with pytest.raises(PyMongoError) as caught:
        write()
    assert vars(caught.value)["retry_rule"] is (
        Rule.SELECTION if name == "no server" else Rule.ATTEMPTS
    )
    assert len(sent.named("update")) == (6 if name == "overload" else 0)
    assert len(runs) == (not atomic)
    proxy.clear()


APPLIES: dict[str, tuple[int, list[str], int]] = {
    "unsatisfiable": (100, [], 1),
    "no such mode": (79, [], 1),
    "transient": (100, ["TransientTransactionError"], 1),
    "timeout": (64, [], 2),
    "election": (189, ["RetryableWriteError"], 2),
}
"""Code and labels, as a real server answers, and how often the commit is sent."""


WAYS = [("with_transaction", None), ("retry", LOW), ("atomic", None), ("atomic", LOW)]


@pytest.mark.parametrize(("way", "timeout_ms"), WAYS)
@pytest.mark.parametrize("name", APPLIES)
def test_a_commit_with_a_write_concern_error_is_applied(
    name: str, way: str, timeout_ms: int | None, side: Side, proxy: ReplicaSet,
    database: str, control: Any, sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """It is repeated alone at most, never with its transaction."""
    instrument(timeout_ms=timeout_ms)
    control[database].coll.insert_many([{"_id": 1, "n": 0}, {"_id": 2, "n": 0}])
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    code, labels, commits = APPLIES[name]
    proxy.inject(FailWriteConcern("commitTransaction", code=code, labels=labels))

    def body(session: Any) -> Any:
        return coll.update_many({}, {"$inc": {"n": 1}}, session=session)

    def write() -> None:
        if way == "atomic":
            with override(atomic=True):
                side.do(coll.update_many, {}, {"$inc": {"n": 1}})
        elif way == "retry":
            run(side, client, body)
        else:
            with session_of(side, client) as session:
                with_transaction(side, session, body)

    if commits == 1:
        with pytest.raises(WriteConcernError, match="the transaction was committed, but its write"):
            write()
    else:
        write()
    assert [len(sent.named(each)) for each in ("update", "commitTransaction")] == [1, commits]
    assert control[database].coll.distinct("n") == [1]
