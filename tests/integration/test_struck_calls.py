"""A signal handler's exception at any line of the library leaves nothing in force, and arrives."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from support.clients import Side, fail_command
from support.engine.retry_strategies import AT_ONCE
from support.striking import Line, SoftTimeLimitExceeded, moments, run
from support.telemetry import Instrument

from pymongo_resilience import Policy, bind, override, retry_transaction
from pymongo_resilience.breakers.breaker_states import HalfOpen
from pymongo_resilience.testbed import Fail, ReplicaSet

pytestmark = [pytest.mark.oldest, pytest.mark.thorough("each line of a call is struck")]
NO_CHANGE: Callable[[], Any] = nullcontext


class Made:
    """A call, and what is to be done after it."""

    def __init__(self, act: Callable[[], Any], after: Callable[[], Any] | None = None) -> None:
        self.act = act
        self.after = after


def find_one(side: Side, coll: Any) -> Made:
    return Made(functools.partial(coll.find_one, {}))


def insert_one(side: Side, coll: Any) -> Made:
    return Made(functools.partial(coll.insert_one, {}))


def batch(side: Side, coll: Any) -> Made:
    cursor = coll.find({}, batch_size=2)
    for _ in range(2):
        side.do(cursor.next)
    return Made(cursor.next, cursor.close)


def commit(side: Side, coll: Any) -> Made:
    session = side.do(coll.database.client.start_session)
    side.do(session.start_transaction)
    side.do(coll.insert_one, {}, session=session)
    # Or the server keeps it open.
    return Made(session.commit_transaction, session.commit_transaction)


def whole_transaction(side: Side, coll: Any) -> Made:
    session = side.do(coll.database.client.start_session)

    def callback(session: Any) -> Any:
        return coll.find_one({}, session=session)

    async def async_callback(session: Any) -> Any:
        return await coll.find_one({}, session=session)

    chosen = callback if side.runner is None else async_callback

    def nothing_of_it() -> None:
        assert not [name for name in vars(session) if name.endswith("_transaction_deadline")]
        assert "_pymongo_resilience_transaction" not in vars(session)

    def after() -> Any:
        nothing_of_it()
        return session.end_session()

    return Made(functools.partial(session.with_transaction, chosen), after)


INC = {"$inc": {"n": 1}}


def atomic(side: Side, coll: Any) -> Made:
    def act() -> Any:
        with override(atomic=True):
            return coll.update_many({}, INC)

    async def async_act() -> Any:
        async with override(atomic=True):
            return await coll.update_many({}, INC)

    return Made(act if side.runner is None else async_act)


def by_hand(side: Side, coll: Any) -> Made:
    def act(session: Any) -> None:
        coll.update_many({}, INC, session=session)

    async def async_act(session: Any) -> None:
        await coll.update_many({}, INC, session=session)

    decorate = retry_transaction(coll.database.client)
    return Made(decorate(act if side.runner is None else async_act))


Make = Callable[[Side, Any], Made]
CALLS: dict[str, Make] = {
    each.__name__: each for each in (find_one, insert_one, batch, commit, whole_transaction)
}
ENDS_WITHIN = 5.0
"""Seconds that what goes on in the background has."""
EVERYTHING = {"timeout_ms": 20_000, "circuit_breaker": "always", "server_selection": "least_loaded"}


def bound(make: Make) -> Make:
    """In a block of its own, on a bound collection."""

    def made(side: Side, coll: Any) -> Made:
        inner = make(side, bind(coll, Policy(timeout_ms=15_000)))

        def act() -> Any:
            with override(timeout_ms=10_000, idempotent=True):
                return inner.act()

        async def async_act() -> Any:
            async with override(timeout_ms=10_000, idempotent=True):
                return await inner.act()

        return Made(act if side.runner is None else async_act, inner.after)

    return made


def strike_everywhere(
    side: Side,
    coll: Any,
    make: Make,
    *,
    around: Callable[[], Any] = NO_CHANGE,
    left: Callable[[], object] = lambda: None,
    known: Container[Line] = (),
) -> list[Any]:
    """What went wrong at each line that is not ``known``; ``left``: what a struck call has left
    behind, beside what is in force."""

    def strike(*args: Any) -> Any:
        made = make(side, coll)
        with around():
            result = run(side, made.act, *args)
        remains = left()
        if made.after is not None:
            with suppress(PyMongoError):
                side.do(made.after)
        return result, remains

    strike()
    (seen, error, changed), _ = strike()
    assert (error, changed) == (None, {})
    assert len(seen.lines) > 50
    wrong = []
    for number, at in enumerate(moments(seen.lines, known)):
        raises = (KeyboardInterrupt, SoftTimeLimitExceeded)[number % 2]
        (tracer, raised, changed), remains = strike(at, raises)
        if tracer.out_of_reach:
            continue
        arrived = tracer.struck is None or isinstance(raised, raises)
        if changed or remains or not arrived:
            wrong.append((raises.__name__, tracer.struck, changed, remains, raised))
    return wrong


@pytest.mark.parametrize("call", CALLS)
def test_nothing_stays_in_force(
    call: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_many, [{} for _ in range(5)])
    assert strike_everywhere(side, coll, CALLS[call]) == []


@pytest.mark.parametrize("call", CALLS)
def test_nothing_stays_in_force_of_blocks_counts_and_deadlines(
    call: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**EVERYTHING)
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.insert_many, [{} for _ in range(5)])
    runtime = PymongoResilienceInstrumentor()._runtime
    assert runtime is not None

    def left() -> Any:
        counts = runtime.counts_of(client)
        return (counts is not None and counts.by_address) or list(runtime.clients.waiting)

    assert strike_everywhere(side, coll, bound(CALLS[call]), left=left) == []


@pytest.mark.parametrize("mode", ["plain", "deadline"])
def test_nothing_stays_in_force_of_a_retry(
    mode: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
) -> None:
    options = {"timeout_ms": 20_000, "server_selection": "least_loaded"}
    instrument(strategy=AT_ONCE, **({} if mode == "plain" else options))
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_one, {})

    def failing() -> Any:
        return fail_command(
            control, "insert", errorCode=6, errorLabels=["RetryableWriteError"], times=1
        )

    healthy, _, _ = run(side, insert_one(side, coll).act)
    known = frozenset(healthy.lines)
    assert strike_everywhere(side, coll, insert_one, around=failing, known=known) == []


def test_no_probe_of_a_breaker_stays_under_way(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(**EVERYTHING)
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.insert_one, {})
    runtime = PymongoResilienceInstrumentor()._runtime
    assert runtime is not None
    assert runtime.breakers is not None
    (breaker,) = runtime.breakers.of(client)._by_server.values()

    @contextmanager
    def half_open() -> Iterator[None]:
        breaker._state = HalfOpen(breaker, (1, 1))
        yield

    def left() -> Any:
        state = breaker._state
        return isinstance(state, HalfOpen) and list(state._under_way)

    assert strike_everywhere(side, coll, find_one, around=half_open, left=left) == []


def test_no_connection_keeps_what_was_put_on_it(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000, timeout_mode="iteration")
    client = side.client(proxy.uri)
    coll = client[database].coll
    side.do(coll.insert_many, [{} for _ in range(5)])

    def first_batch(side: Side, coll: Any) -> Made:
        cursor = coll.find({}, batch_size=2)
        return Made(cursor.next, cursor.close)

    def left() -> Any:
        pools = [server.pool for server in client._topology._servers.values()]
        return [each for pool in pools for each in pool.conns if "apply_timeout" in vars(each)]

    assert strike_everywhere(side, coll, first_batch, left=left) == []


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("make", [atomic, by_hand])
def test_no_transaction_stays_open(
    make: Make,
    repeated: bool,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: MongoClient[Any],
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor its session; and all documents are changed, once, or none is."""
    instrument(timeout_ms=20_000)
    documents = control[database].coll
    documents.insert_many([{"n": 0} for _ in range(5)])
    client = side.client(proxy.uri)
    coll = client[database].coll
    sessions: list[Any] = []
    start = client.start_session

    def start_session(**options: Any) -> Any:
        sessions.append(start(**options))
        return sessions[-1]

    monkeypatch.setattr(client, "start_session", start_session)
    before = [0]

    def left() -> Any:
        used: list[Any] = []
        end = time.monotonic() + ENDS_WITHIN
        while time.monotonic() < end:  # what cannot be awaited ends in a task of its own
            side.do(client.admin.command, "ping")
            # Unless it was used, a session has nothing of the server's.
            used = [each for each in sessions if hasattr(each._server_session, "session_id")]
            if not used:
                break
        sessions.clear()
        try:
            with pymongo.timeout(5):
                documents.update_many({}, {"$set": {"free": True}})
        except PyMongoError as error:
            control.admin.command("killAllSessions", [])
            return error
        (now,) = numbers = documents.distinct("n")
        wrong = now - before[0] not in (0, 1)
        before[0] = now
        return used or (wrong and numbers)

    def failing() -> Any:
        conflict = Fail("update", code=112, labels=["TransientTransactionError"])
        proxy.inject(conflict)
        return nullcontext()

    options: dict[str, Any] = {}
    if repeated:
        healthy, _, _ = run(side, make(side, coll).act)
        before[0] = 1
        options = {"around": failing, "known": frozenset(healthy.lines)}
    assert strike_everywhere(side, coll, make, left=left, **options) == []
