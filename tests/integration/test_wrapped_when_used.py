"""What most applications never use is wrapped at its first use, and works from then on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import wrapt
from pymongo.asynchronous import pool as async_pool
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.errors import NetworkTimeout
from pymongo.synchronous import pool as sync_pool
from pymongo.synchronous.client_session import ClientSession
from pymongo.synchronous.cursor import Cursor
from pymongo_resilience_instrumentation.telemetry.transaction_spans import sessions_used
from pymongo_resilience_instrumentation.timeouts.command_limits import reply_limits_used
from pymongo_resilience_instrumentation.timeouts.precedence import cursor_timeouts_used
from support.clients import SentCommands, Side
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError, bind, override
from pymongo_resilience.policies.blocks import policies_used
from pymongo_resilience.testbed import ReplicaSet, Slow

WRAPPERS = (wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper)
EVERY_USE = (policies_used, cursor_timeouts_used, reply_limits_used, sessions_used)
PLACES: dict[str, Callable[[], list[Any]]] = {
    "policy": lambda: [Cursor.__init__, AsyncCursor.__init__],
    "cursor": lambda: [Cursor.close, AsyncCursor.close],
    "reply": lambda: [sync_pool.receive_message, async_pool.async_receive_message],
    "session": lambda: [ClientSession.end_session, AsyncClientSession.end_session],
}
"""By what uses them; each of both APIs."""


def wrapped() -> set[str]:
    """What is not pymongo's own now."""
    return {
        name
        for name, found in PLACES.items()
        if all(isinstance(each, WRAPPERS) for each in found())
    }


@pytest.fixture
def instrument_first(monkeypatch: pytest.MonkeyPatch, instrument: Instrument) -> Iterator[Any]:
    """Instruments a process in which nothing was used yet."""
    with contextlib.ExitStack() as stack:
        for used in EVERY_USE:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(used, "happened", False)
        yield instrument


@pytest.fixture
def documents(control: Any, database: str) -> str:
    """A database with a few documents."""
    control[database].coll.insert_many([{"n": n} for n in range(5)])
    return database


@pytest.fixture
def coll(side: Side, proxy: ReplicaSet, documents: str, instrument_first: Any) -> Any:
    instrument_first(timeout_ms=20_000)
    return side.do(side.client, proxy.uri)[documents].coll


def test_ordinary_operations_need_none(side: Side, coll: Any) -> None:
    side.do(coll.find_one)
    side.do(coll.insert_one, {})
    side.do(coll.update_one, {}, {"$set": {"a": 1}})
    assert wrapped() == set()


@pytest.mark.parametrize("how", ["override", "bind"])
def test_a_cursor_made_under_the_first_policy_carries_it(
    how: str, side: Side, coll: Any, proxy: ReplicaSet
) -> None:
    if how == "bind":
        cursor = bind(coll, timeout_ms=300).find()
    else:
        with override(timeout_ms=300):
            cursor = coll.find()
    assert "policy" in wrapped()
    proxy.inject(Slow(5))
    with pytest.raises(OperationTimeoutError) as caught:
        side.documents(cursor)
    assert caught.value.timeout_s == 0.3


def test_the_first_cursor_with_a_timeout_has_all_of_it_again_to_close(
    side: Side, proxy: ReplicaSet, documents: str, instrument_first: Any
) -> None:
    instrument_first()
    sent = SentCommands()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    with override(timeout_ms=5_000):
        cursor = client[documents].coll.find({}, batch_size=1)
    step = cursor.next
    side.do(step)
    assert "cursor" in wrapped()
    side.do(cursor.close)
    (kill,) = sent.named("killCursors")
    assert 0 < kill["maxTimeMS"] <= 5_000


def test_the_first_reply_with_a_limit_of_its_own_is_not_awaited_longer(
    side: Side, proxy: ReplicaSet, documents: str, instrument_first: Any
) -> None:
    instrument_first(timeout_ms=1_000)
    client = side.do(side.client, proxy.uri, socketTimeoutMS=200)
    side.do(client[documents].coll.find_one)
    assert "reply" in wrapped()
    pymongo_resilience.uninstrument()
    instrument_first(timeout_ms=1_000)
    proxy.inject(Slow(5))
    with pytest.raises(NetworkTimeout, match=r"socketTimeoutMS: 200\.0ms"):
        side.do(client[documents].coll.find_one)


def test_a_session_of_the_applications_is_watched(side: Side, coll: Any) -> None:
    session = side.do(coll.database.client.start_session)
    assert "session" in wrapped()
    side.do(session.end_session)


def test_uninstrument_takes_off_what_was_wrapped_later(side: Side, coll: Any) -> None:
    with override(idempotent=True):
        side.do(coll.find_one)
    assert "policy" in wrapped()
    pymongo_resilience.uninstrument()
    assert wrapped() == set()
    with override(idempotent=True):
        coll.find()
    assert wrapped() == set()
