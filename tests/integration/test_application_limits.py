"""A timeout of the configuration leaves the application's own, tighter limits in place.

The application never chose it in their place: with it, nothing may take longer than in plain
pymongo, which runs beside it here. Under a timeout that the application sets, MongoDB's
specification holds, which replaces them: test_time_limits.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest
from pymongo import WriteConcern
from pymongo.errors import (
    ExecutionTimeout,
    NetworkTimeout,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from support.busy_pools import Silent, the_only_connection_taken
from support.clients import SentCommands, Side, fail_command
from support.telemetry import Instrument
from support.transactions import session_of
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy, override, retry_info
from pymongo_resilience.errors import Rule
from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

TIMEOUT = 20_000
"""Milliseconds, of the configuration."""
TIGHT, LOOSE = 7_000, 90_000
"""What the application gives."""
CONFIGURED: dict[str, dict[str, Any]] = {
    "process": {"timeout_ms": TIMEOUT},
    "rule": {"policies": {"*.*": Policy(timeout_ms=TIMEOUT)}},
    "zero": {"timeout_ms": 0},
    "cursor_lifetime": {"timeout_ms": TIMEOUT, "timeout_mode": "cursor_lifetime"},
}
SERVERS: dict[str, dict[str, Any]] = {
    **CONFIGURED,
    "driver": {"timeout_ms": TIMEOUT, "config_strategy": "driver"},
}
"""For what the server is told, also where pymongo enforces the timeout."""
CONCERN = WriteConcern("majority", wtimeout=TIGHT)


def _commit(side: Side, coll: Any, ms: int, *, whole: bool) -> None:
    with session_of(side, coll.database.client) as session:
        if whole:
            side.do(
                session.with_transaction,
                lambda s: coll.insert_one({}, session=s),
                max_commit_time_ms=ms,
            )
            return
        side.do(session.start_transaction, max_commit_time_ms=ms)
        side.do(coll.insert_one, {}, session=session)
        side.do(session.commit_transaction)


def _tailable(side: Side, coll: Any, ms: int) -> None:
    db = coll.database
    side.do(db.create_collection, "capped", capped=True, size=100_000)
    side.do(db.capped.insert_one, {})
    cursor = db.capped.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT, max_time_ms=ms)
    side.do(cursor.next)
    side.do(cursor.close)


def _raw(side: Side, coll: Any, ms: int) -> None:
    side.do(coll.find_raw_batches({}, batch_size=2, max_time_ms=ms).to_list)


CALLS: dict[str, tuple[Callable[[Side, Any, int], Any], str]] = {
    "find_one": (lambda s, c, ms: s.do(c.find_one, max_time_ms=ms), "find"),
    "find": (lambda s, c, ms: s.documents(c.find(batch_size=2).max_time_ms(ms)), "find"),
    "find_raw_batches": (_raw, "find"),
    "a tailable cursor": (_tailable, "find"),
    "aggregate": (lambda s, c, ms: s.documents(s.do(c.aggregate, [], maxTimeMS=ms)), "aggregate"),
    "count_documents": (lambda s, c, ms: s.do(c.count_documents, {}, maxTimeMS=ms), "aggregate"),
    "estimated_document_count": (
        lambda s, c, ms: s.do(c.estimated_document_count, maxTimeMS=ms), "count"
    ),
    "distinct": (lambda s, c, ms: s.do(c.distinct, "a", maxTimeMS=ms), "distinct"),
    "find_one_and_update": (
        lambda s, c, ms: s.do(c.find_one_and_update, {}, {"$set": {"a": 1}}, maxTimeMS=ms),
        "findAndModify",
    ),
    "create_index": (lambda s, c, ms: s.do(c.create_index, "a", maxTimeMS=ms), "createIndexes"),
    "drop_indexes": (lambda s, c, ms: s.do(c.drop_indexes, maxTimeMS=ms), "dropIndexes"),
    "list_collection_names": (
        lambda s, c, ms: s.do(c.database.list_collection_names, maxTimeMS=ms), "listCollections"
    ),
    "command": (lambda s, c, ms: s.do(c.database.command, "ping", maxTimeMS=ms), "ping"),
    "a document for command": (
        lambda s, c, ms: s.do(c.database.command, {"ping": 1, "maxTimeMS": ms}), "ping"
    ),
    "commit_transaction": (
        lambda s, c, ms: _commit(s, c, ms, whole=False), "commitTransaction"
    ),
    "with_transaction": (lambda s, c, ms: _commit(s, c, ms, whole=True), "commitTransaction"),
}  # fmt: skip


@pytest.fixture
def sent() -> SentCommands:
    return SentCommands()


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, database: str, control: Any, sent: SentCommands) -> Any:
    with set_active(False):
        control[database].coll.insert_many([{"a": number} for number in range(5)])
    return side.client(proxy.uri, event_listeners=[sent])[database].coll


def limits(sent: SentCommands, command: str) -> list[int | None]:
    found = [each.get("maxTimeMS") for each in sent.named(command)]
    sent.started_events.clear()
    return found


@pytest.mark.parametrize("configured", SERVERS)
@pytest.mark.parametrize("name", CALLS)
def test_the_server_keeps_the_applications_limit(
    name: str, configured: str, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    call, command = CALLS[name]
    with set_active(False):
        call(side, coll, TIGHT)
    plain = limits(sent, command)
    assert TIGHT in plain
    side.do(coll.database.drop_collection, "capped")
    instrument(**SERVERS[configured])
    call(side, coll, TIGHT)
    assert limits(sent, command) == plain
    side.do(coll.database.drop_collection, "capped")
    sent.started_events.clear()
    call(side, coll, LOOSE)
    assert all(each is None or each <= LOOSE for each in limits(sent, command))


def test_what_is_left_is_sent_if_it_is_less(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(timeout_ms=TIMEOUT)
    for name in ("find_one", "count_documents", "distinct", "command", "with_transaction"):
        call, command = CALLS[name]
        call(side, coll, LOOSE)
        assert all(0 < (each or 0) <= TIMEOUT for each in limits(sent, command)), name


def test_a_document_of_the_applications_is_not_spoilt_for_the_next_call(
    side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    """pymongo leaves the ``maxTimeMS`` of a call in it."""
    instrument(timeout_ms=TIMEOUT)
    document = {"ping": 1}
    with pymongo.timeout(2):
        side.do(coll.database.command, document)
    side.do(coll.database.command, document)
    short, own = limits(sent, "ping")
    assert short is not None and own is not None  # noqa: PT018 - for the type checker
    assert short <= 2000 < own <= TIMEOUT


@pytest.mark.parametrize("block", [override(timeout_ms=TIMEOUT), pymongo.timeout(TIMEOUT / 1000)])
def test_a_timeout_of_the_application_replaces_it(
    block: Any, side: Side, coll: Any, sent: SentCommands, instrument: Instrument
) -> None:
    instrument(timeout_ms=TIMEOUT)
    with block:
        CALLS["count_documents"][0](side, coll, TIGHT)
        side.do(coll.with_options(write_concern=CONCERN).insert_one, {})
    (limit,) = limits_and_keep(sent, "aggregate")
    assert limit is not None
    assert limit > TIGHT
    assert "wtimeout" not in sent.named("insert")[0]["writeConcern"]


def limits_and_keep(sent: SentCommands, command: str) -> list[int | None]:
    return [each.get("maxTimeMS") for each in sent.named(command)]


WRITES: dict[str, Callable[[Side, Any], Any]] = {
    "insert_one": lambda s, c: s.do(c.insert_one, {}),
    "insert_many": lambda s, c: s.do(c.insert_many, [{}, {}]),
    "delete_one": lambda s, c: s.do(c.delete_one, {}),
    "bulk_write": lambda s, c: s.do(c.bulk_write, [pymongo.InsertOne({})]),
    "create_index": lambda s, c: s.do(c.create_index, "a"),
    "$out": lambda s, c: s.do(c.aggregate, [{"$out": "other"}]),
    "a transaction": lambda s, c: _commit(s, c, TIGHT, whole=True),
}


@pytest.mark.parametrize("configured", SERVERS)
@pytest.mark.parametrize("name", WRITES)
def test_the_wtimeout_of_a_write_concern(
    name: str, configured: str, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    client = side.client(proxy.uri, event_listeners=[sent], w="majority", wTimeoutMS=TIGHT)
    written = client[coll.database.name].coll

    def concerns() -> list[Any]:
        WRITES[name](side, written)
        found = [event.command.get("writeConcern") for event in sent.started_events]
        sent.started_events.clear()
        return [each for each in found if each is not None]

    with set_active(False):
        plain = concerns()
    assert {"w": "majority", "wtimeout": TIGHT} in plain
    instrument(**SERVERS[configured])
    assert concerns() == plain


def test_code_50_from_the_applications_limit_keeps_its_error(
    side: Side, coll: Any, control: Any, instrument: Instrument
) -> None:
    """Also while little is left of the deadline: what the server was given was the shorter."""
    instrument(timeout_ms=TIMEOUT)
    wait_for_server(side, coll.database.client)
    for name in ("find", "distinct", "command"):
        call, command = CALLS[name]
        with fail_command(control, command, errorCode=50, times=1):
            with pytest.raises(ExecutionTimeout) as caught:
                call(side, coll, TIGHT)
        assert not isinstance(caught.value, OperationTimeoutError)
        info = retry_info(caught.value)
        assert info is not None
        assert (info.rule, info.attempts) == (Rule.TIME_LIMIT, 1)


SHORT = 0.3
"""Seconds of a client's own limit, which the timeout of the configuration exceeds by far."""


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Much sooner than the timeout of the configuration, and not before the application's limit."""
    began = time.monotonic()
    yield
    assert SHORT * 0.9 < time.monotonic() - began < TIMEOUT / 1000 / 2


@pytest.mark.parametrize("configured", [None, *CONFIGURED])
@pytest.mark.parametrize("method", ["find_one", "insert_one", "aggregate"])
def test_the_sockets_timeout(
    method: str, configured: str | None, side: Side, proxy: ReplicaSet, database: str,
    instrument: Instrument,
) -> None:  # fmt: skip
    """None is plain pymongo."""
    if configured is not None:
        instrument(**CONFIGURED[configured])
    client = side.client(
        proxy.uri, socketTimeoutMS=int(SHORT * 1000), retryReads=False, retryWrites=False
    )
    wait_for_server(side, client)
    coll = client[database].coll
    arguments = {"insert_one": ({},), "aggregate": ([],)}.get(method, ())
    proxy.inject(Silent(method.partition("_")[0]))
    with quick(), pytest.raises(NetworkTimeout) as caught:
        side.do(getattr(coll, method), *arguments)
    assert not isinstance(caught.value, OperationTimeoutError)
    assert f"socketTimeoutMS: {SHORT * 1000}ms" in str(caught.value)


@pytest.mark.parametrize("configured", [None, *CONFIGURED])
def test_a_full_pool(
    configured: str | None, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    if configured is not None:
        instrument(**CONFIGURED[configured])
    client = side.client(proxy.uri, maxPoolSize=1, waitQueueTimeoutMS=int(SHORT * 1000))
    wait_for_server(side, client)
    with the_only_connection_taken(side, client, proxy):
        with quick(), pytest.raises(WaitQueueTimeoutError) as caught:
            side.do(client[database].coll.find_one)
        proxy.clear()
    assert not isinstance(caught.value, OperationTimeoutError)
    assert str(caught.value).count(f"timeout: {SHORT}") == 1


@pytest.mark.parametrize("configured", [None, *CONFIGURED])
def test_the_selections_timeout(configured: str | None, side: Side, instrument: Instrument) -> None:
    if configured is not None:
        instrument(**CONFIGURED[configured])
    client = side.client("mongodb://127.0.0.1:1/", serverSelectionTimeoutMS=int(SHORT * 1000))
    with quick(), pytest.raises(ServerSelectionTimeoutError) as caught:
        side.do(client.db.coll.find_one)
    assert not isinstance(caught.value, OperationTimeoutError)
