"""with_transaction under one deadline: what has it, what has not, what is refused, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo import InsertOne, _csot
from pymongo.errors import (
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
)
from pymongo_resilience_instrumentation.transactions import session_methods
from support.clients import SentCommands, Side
from support.command_listeners import OnCommands
from support.telemetry import Instrument
from support.transactions import LONG, LOW, DriversTime, drivers_time, limits, run, session_of

from pymongo_resilience import OperationTimeoutError, Policy, bind, override
from pymongo_resilience.testbed import BlackHole, Fail, ReplicaSet

__all__ = ["drivers_time"]
pytestmark = pytest.mark.oldest
TRANSIENT = {"code": 112, "labels": ["TransientTransactionError"]}


ABORT_MS = int(session_methods.ABORT_GRACE * 1000)


def insert(coll: Any) -> Callable[[Any], Any]:
    return lambda session: coll.insert_one({}, session=session)


@pytest.mark.parametrize(
    ("config", "of_client", "of_session", "around"),
    [
        (LOW, {}, {}, contextlib.nullcontext),
        (LONG, {"timeoutMS": LOW}, {}, contextlib.nullcontext),
        (LONG, {"timeoutMS": LONG}, {"default_timeout_ms": LOW}, contextlib.nullcontext),
        (None, {}, {"default_timeout_ms": LONG}, lambda: override(timeout_ms=LOW)),
        (None, {}, {"default_timeout_ms": LONG}, lambda: pymongo.timeout(LOW / 1000)),
    ],
    ids=["Config", "client", "session", "override", "pymongo.timeout"],
)
def test_one_deadline_is_over_the_callbacks_operations_and_the_commit(
    config: int | None, of_client: dict[str, Any], of_session: dict[str, Any],
    around: Callable[[], Any], side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument, drivers_time: DriversTime,
) -> None:  # fmt: skip
    """A policy that the collection is bound to does not hold there, nor does a rule for it."""
    instrument(timeout_ms=config, policies={f"{database}.*": Policy(timeout_ms=1)})
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], **of_client)
    coll = bind(client[database].coll, Policy(timeout_ms=2))

    def pass_time(_: Any) -> None:
        drivers_time.passed += LOW / 4 / 1000

    with session_of(side, client, **of_session) as session, around():
        run(side, session, insert(coll), pass_time, insert(coll), pass_time)
    first, second, commit = limits(sent, "insert", "commitTransaction")
    assert first is not None and second is not None and commit is not None  # noqa: PT018 - for the type checker
    assert LOW * 3 / 4 < first <= LOW
    assert LOW / 2 < second <= LOW * 3 / 4
    assert LOW / 4 < commit <= LOW / 2


@pytest.mark.parametrize("around", [True, False])
def test_operations_without_the_session_are_not_covered(
    around: bool, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    """An override around with_transaction is around them as well: each has the whole of it."""
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client[database].create_collection, "audit")

    def audit(_: Any) -> Any:
        return client[database].audit.find_one()

    def expire(_: Any) -> None:
        drivers_time.passed = LOW

    block = override(timeout_ms=LOW) if around else contextlib.nullcontext()
    given = {} if around else {"default_timeout_ms": LOW}
    with session_of(side, client, **given) as session, block:
        with pytest.raises(OperationTimeoutError):
            run(side, session, audit, expire, audit, insert(client[database].coll))
    assert sent.named("insert") == []
    for limit in limits(sent, "find"):
        assert limit is None if not around else limit is not None and limit > LOW / 2
    assert len(sent.named("find")) == 2


@pytest.fixture
def seeded(control: Any, database: str) -> str:
    control[database].coll.insert_one({"_id": 0})
    return database


def update(coll: Any) -> Callable[[Any], Any]:
    return lambda session: coll.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=session)


def assert_gone(control: Any, database: str, before: Any = None) -> None:
    """The transaction that has changed the document is: until then, this write waits for it."""
    with pymongo.timeout(5):
        found = control[database].coll.find_one_and_update({"_id": 0}, {"$set": {"free": True}})
    assert found.get("n") == before


def is_gone(control: Any, database: str) -> bool:
    with pymongo.timeout(0.3), contextlib.suppress(PyMongoError):
        return bool(control[database].coll.find_one_and_update({"_id": 0}, {"$set": {"free": 1}}))
    return False


def test_the_abort_after_the_deadline_has_a_time_of_its_own(
    side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[seeded].coll

    def expire(_: Any) -> None:
        drivers_time.passed = 2 * LOW

    with session_of(side, client, default_timeout_ms=LOW) as session:
        with pytest.raises(OperationTimeoutError) as caught:
            run(side, session, update(coll), expire, lambda s: coll.find_one({}, session=s))
        assert caught.value.timeout_s == LOW / 1000
        assert caught.value.elapsed_s >= 2 * LOW
        names = [each.command_name for each in sent.started_events]
        assert names[-2:] == ["update", "abortTransaction"]  # begun anew, if the server aborts one
        assert limits(sent, "abortTransaction")[-1] in range(1, ABORT_MS + 1)
        assert_gone(control, seeded)


def test_an_abort_that_the_application_calls_has_the_whole_timeout(
    side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    with session_of(side, client, default_timeout_ms=LOW) as session:
        side.do(session.start_transaction)
        side.do(update(client[seeded].coll), session)
        drivers_time.passed = 2 * LOW
        side.do(session.abort_transaction)
    assert limits(sent, "abortTransaction")[-1] in range(LOW // 2, LOW + 1)
    assert_gone(control, seeded)


@pytest.mark.parametrize("seconds", [1.2])
def test_a_server_that_falls_silent_does_not_make_it_return_late(
    seconds: float, side: Side, proxy: ReplicaSet, seeded: str, control: Any,
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Neither the abort in the middle nor the one at the end: the background task has them."""
    monkeypatch.setattr(session_methods, "ABORT_GRACE", 0.2)
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 0.1)
    instrument()
    client = side.client(proxy.uri)
    coll = client[seeded].coll
    side.do(coll.find_one)
    hole = BlackHole(60)

    def fall_silent(_: Any) -> None:
        if not hole.struck:
            proxy.inject(hole)

    with session_of(side, client, default_timeout_ms=int(seconds * 1000)) as session:
        began = time.monotonic()
        with pytest.raises(PyMongoError):
            run(side, session, update(coll), fall_silent, lambda s: coll.find_one({}, session=s))
        assert time.monotonic() - began < seconds + 10
    proxy.clear()
    side.wait_until(lambda: is_gone(control, seeded))


def test_a_session_that_was_bound_by_the_callback_is_under_the_deadline(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    with session_of(side, client, default_timeout_ms=LOW) as session:

        def sync_callback(given: Any) -> None:
            with given.bind(end_session=False):
                client[database].coll.insert_one({})

        async def async_callback(given: Any) -> None:
            async with given.bind(end_session=False):
                await client[database].coll.insert_one({})

        callback = sync_callback if side.runner is None else async_callback
        side.do(session.with_transaction, callback)
    assert limits(sent, "insert")[0] in range(LOW // 2, LOW + 1)


OWN: dict[str, Callable[[], Any]] = {
    "override": lambda: override(timeout_ms=LONG),
    "pymongo.timeout": lambda: pymongo.timeout(LONG / 1000),
    "of the same length": lambda: override(timeout_ms=LOW),
    "without end": lambda: override(timeout_ms=0),
}
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "insert_one": lambda coll, s: coll.insert_one({}, session=s),
    "positional": lambda coll, s: coll.insert_one({}, False, s),
    "find_one": lambda coll, s: coll.find_one({}, session=s),
    "find": lambda coll, s: coll.find({}, session=s).to_list(),
    "aggregate": lambda coll, s: coll.aggregate([], session=s),
    "bulk_write": lambda coll, s: coll.bulk_write([InsertOne({})], session=s),
    "command": lambda coll, s: coll.database.command("find", coll.name, session=s),
    "commit": lambda _, s: s.commit_transaction(),
}


@pytest.mark.parametrize(
    ("own", "name", "around"),
    [
        *((own, "insert_one", True) for own in OWN),
        *(("override", name, False) for name in OPERATIONS),
    ],
)
def test_a_timeout_inside_for_the_session_is_refused(
    own: str, name: str, around: bool, side: Side, proxy: ReplicaSet, seeded: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[seeded].coll
    outer = override(timeout_ms=LOW) if around else contextlib.nullcontext()
    with session_of(side, client, default_timeout_ms=LOW) as session, outer:
        side.do(coll.find_one)
        sent.started_events.clear()
        steps = (lambda s: OPERATIONS[name](coll, s),)
        with pytest.raises(InvalidOperation, match="outside of with_transaction"):
            run(side, session, *steps, block=OWN[own])
        assert sent.started_events == []
        assert not session.in_transaction
        # The next transaction of the session is none the wiser.
        run(side, session, update(coll))
    assert control[seeded].coll.find_one() == {"_id": 0, "n": 1}


@pytest.mark.parametrize("own", OWN)
def test_it_is_not_refused_without_the_session(
    own: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri)
    with session_of(side, client, default_timeout_ms=LOW) as session:
        found = run(side, session, lambda _: client[database].coll.find_one(), block=OWN[own])
    assert found == [None]


def test_an_override_of_something_else_is_not_refused(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    with session_of(side, client) as session, override(timeout_ms=LOW):
        run(side, session, insert(coll), block=lambda: override(idempotent=True))
    assert limits(sent, "insert")[0] in range(LOW // 2, LOW + 1)


def test_an_operation_that_is_fed_from_another_is_not_refused(
    server: Any, database: str, instrument: Instrument
) -> None:
    """The deadline that the outer one puts in force is none of the application's."""
    instrument(timeout_ms=LONG)
    with pymongo.MongoClient(server.uri) as client:
        db = client[database]
        db.source.insert_many([{}, {}])
        with client.start_session(default_timeout_ms=LOW) as session:
            session.with_transaction(lambda s: db.target.insert_many(db.source.find(session=s)))
        assert db.target.count_documents({}) == 2


@pytest.mark.parametrize(
    ("command", "fault"), [("update", TRANSIENT), ("commitTransaction", {"code": 6})]
)
def test_it_is_repeated_until_the_deadline_and_no_longer(
    command: str, fault: dict[str, Any], side: Side, proxy: ReplicaSet, seeded: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[seeded].coll
    side.do(coll.find_one)
    proxy.inject(Fail(command, times=100_000, **fault))
    with session_of(side, client, default_timeout_ms=1500) as session:
        with pytest.raises(OperationTimeoutError) as caught:
            run(side, session, update(coll))
        proxy.clear()
        if command == "commitTransaction":
            # As without the library, the driver does not abort what it has tried to commit.
            side.do(session.commit_transaction)
    assert_gone(control, seeded, 1 if command == "commitTransaction" else None)
    error = caught.value
    assert error.timeout_s == 1.5
    assert error.elapsed_s < 10
    assert str(error.__cause__) in str(error)
    # A commit is repeated by itself, and not with the whole transaction.
    assert len(sent.named(command)) > 2


def test_what_ends_it_is_an_error_of_the_drivers_around_the_last_one(
    side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument,
    drivers_time: DriversTime,
) -> None:  # fmt: skip
    instrument()
    client = side.client(proxy.uri)
    coll = client[seeded].coll
    runs: list[PyMongoError] = []

    def fail(_: Any) -> None:
        error = OperationFailure("conflict", 112, {"errorLabels": ["TransientTransactionError"]})
        runs.append(error)
        drivers_time.passed = LOW * (len(runs) - 1)
        raise error

    with session_of(side, client, default_timeout_ms=LOW) as session:
        with pytest.raises(OperationTimeoutError) as caught:
            run(side, session, update(coll), fail)
    error = caught.value
    assert isinstance(error, ExecutionTimeout)
    assert error.__cause__ is not None
    assert error.__cause__.__cause__ is runs[-1]
    assert str(runs[-1]) in str(error.__cause__) in str(error)
    assert error.has_error_label("TransientTransactionError")
    assert (error.timeout_s, error.attempts) == (LOW / 1000, 2)
    assert len(runs) == 2
    assert_gone(control, seeded)


def end_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """pymongo's own, of 120 s."""
    shared = getattr(pymongo, "client_session_shared", None)
    for module in [shared, pymongo.synchronous.client_session, pymongo.asynchronous.client_session]:
        limit = "_WITH_TRANSACTION_RETRY_TIME_LIMIT"
        if hasattr(module, limit):
            monkeypatch.setattr(module, limit, 0)


@pytest.mark.parametrize("default_timeout_ms", [LONG, 0, None])
def test_the_limit_of_120_s_is_for_those_without_a_deadline(
    default_timeout_ms: int | None, side: Side, proxy: ReplicaSet, seeded: str, control: Any,
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    end_the_limit(monkeypatch)
    instrument()
    client = side.client(proxy.uri)
    coll = client[seeded].coll
    proxy.inject(Fail("update", times=2, **TRANSIENT))
    with session_of(side, client, default_timeout_ms=default_timeout_ms) as session:
        if default_timeout_ms:
            run(side, session, update(coll))
        else:
            with pytest.raises(PyMongoError) as caught:
                run(side, session, update(coll))
            assert not isinstance(caught.value, OperationTimeoutError)
    assert_gone(control, seeded, 1 if default_timeout_ms else None)


def test_a_timeout_that_the_callback_raises_itself_is_raised_as_it_is(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    client = side.client(proxy.uri)
    of_another = NetworkTimeout("of another database")

    def fail(_: Any) -> None:
        raise of_another

    with session_of(side, client, default_timeout_ms=LOW) as session:
        with pytest.raises(NetworkTimeout) as caught:
            run(side, session, insert(client[database].coll), fail)
    assert caught.value is of_another


def test_of_a_timeout_without_end_nothing_is_left_to_tell(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """But it is one, and the callback can give none of its own."""
    instrument(timeout_ms=LOW)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll
    with session_of(side, client, default_timeout_ms=0) as session:
        run(side, session, insert(coll))
        assert limits(sent, "insert", "commitTransaction") == [None, None]
        with pytest.raises(InvalidOperation):
            run(side, session, insert(coll), block=OWN["override"])


@pytest.mark.parametrize("error", [None, LookupError, OperationFailure, KeyboardInterrupt])
def test_nothing_of_it_is_left_afterwards(
    error: type[BaseException] | None, side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[database].coll

    def fail(_: Any) -> None:
        if error is not None:
            raise error("of the application")

    with session_of(side, client, default_timeout_ms=LOW) as session:
        before = dict(vars(session))
        expected = contextlib.nullcontext() if error is None else pytest.raises(error)
        with expected:
            run(side, session, insert(coll), fail)
        assert set(vars(session)) == set(before)
        side.do(coll.insert_one, {}, session=session)
        with override(timeout_ms=LONG):
            side.do(coll.insert_one, {}, session=session)
    inside, after, own = limits(sent, "insert")
    assert inside is not None
    assert after is None
    assert own is not None
    assert own > LOW
    assert (_csot.TIMEOUT.get(), _csot.DEADLINE.get()) == (None, float("inf"))


def test_what_the_session_keeps_is_marked_as_private(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    before = set(vars(side.client(proxy.uri).start_session()))
    instrument()
    client = side.client(proxy.uri)
    with session_of(side, client, default_timeout_ms=LOW) as session:
        (inside,) = run(side, session, lambda given: set(vars(given)))
    assert inside - before
    assert all(name.startswith("_") for name in inside - before)


def test_so_is_a_task_and_what_it_does_later_is_not(
    server: Any, database: str, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()

    async def main() -> None:
        async with pymongo.AsyncMongoClient(server.uri, event_listeners=[sent]) as client:
            coll = client[database].coll
            over, late = asyncio.Event(), []

            async def later() -> None:
                await over.wait()
                await coll.insert_one({})

            async def callback(session: Any) -> None:
                await asyncio.create_task(coll.insert_one({}, session=session))
                late.append(asyncio.create_task(later()))

            async with client.start_session(default_timeout_ms=LOW) as session:
                await session.with_transaction(callback)
            over.set()
            await late[0]

    asyncio.run(main())
    inside, after = limits(sent, "insert")
    assert inside in range(LOW // 2, LOW + 1)
    assert after is None


def test_without_a_deadline_all_is_as_the_driver_has_it(
    side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument
) -> None:
    instrument()
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    coll = client[seeded].coll
    proxy.inject(Fail("update", **TRANSIENT))
    with session_of(side, client) as session:
        run(side, session, update(coll), block=lambda: override(timeout_ms=LONG))
    first, second = limits(sent, "update")
    assert first is not None
    assert second is not None
    assert limits(sent, "commitTransaction") == [None]
    assert_gone(control, seeded, 1)


LABELS = (
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "SystemOverloadedError",
    "RetryableError",
    "NoWritesPerformed",
    "RetryableWriteError",
)
TRANSIENT_LABEL, UNKNOWN_RESULT, *OTHERS, _ = LABELS
"""In a transaction no command but its end has the last one: pymongo takes it away."""


def all_time_passes(name: str, clock: DriversTime) -> OnCommands:
    """When a command of that name has failed."""

    def failed(event: Any) -> None:
        if event.command_name == name:
            clock.passed = LOW

    return OnCommands(failed=failed)


@pytest.mark.parametrize(
    ("command", "labels"),
    [
        ("update", [TRANSIENT_LABEL]),
        ("update", [TRANSIENT_LABEL, *OTHERS]),
        ("commitTransaction", [TRANSIENT_LABEL]),
        ("commitTransaction", [TRANSIENT_LABEL, "SystemOverloadedError", "RetryableError"]),
        ("commitTransaction", [UNKNOWN_RESULT]),
        ("commitTransaction", [UNKNOWN_RESULT, "RetryableWriteError"]),
    ],
)
def test_its_timeout_has_all_labels_of_the_last_error(
    command: str, labels: list[str], side: Side, proxy: ReplicaSet, seeded: str,
    instrument: Instrument, drivers_time: DriversTime,
) -> None:  # fmt: skip
    """Convenient API for Transactions: the timeout error exposes the labels of what it wraps."""
    instrument()
    client = side.client(proxy.uri, event_listeners=[all_time_passes(command, drivers_time)])
    coll = client[seeded].coll
    side.do(coll.find_one)
    code = 64 if UNKNOWN_RESULT in labels else 112
    proxy.inject(Fail(command, times=100, code=code, labels=labels))
    with session_of(side, client, default_timeout_ms=LOW) as session:
        with pytest.raises(OperationTimeoutError) as caught:
            run(side, session, update(coll))
        proxy.clear()
        drivers_time.passed = 0
        if command == "commitTransaction":
            side.do(session.commit_transaction)
    error = caught.value
    assert isinstance(error, PyMongoError)
    assert {label for label in LABELS if error.has_error_label(label)} == set(labels)
