"""Cursors with the session of a with_transaction: they have what is left of it, and no more."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo.errors import InvalidOperation
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import LONG, LOW, limits, run, session_of

from pymongo_resilience import ConfigurationError, Policy, bind, override
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest
OWN: dict[str, tuple[dict[str, Any], dict[str, Any], Policy]] = {
    "Config": ({"timeout_ms": LONG}, {}, Policy()),
    "Config, by iteration": ({"timeout_ms": LONG, "timeout_mode": "iteration"}, {}, Policy()),
    "Config, without end": ({"timeout_ms": 0}, {}, Policy()),
    "client": ({}, {"timeoutMS": LONG}, Policy()),
    "bind": ({}, {}, Policy(timeout_ms=LONG)),
    "bind, by iteration": ({}, {}, Policy(timeout_mode="iteration")),
}
"""What a cursor would have without the transaction: the options of Config and of its client, and
the policy of its collection."""
Read = Callable[[Any, Any], Any]


def _found(coll: Any, session: Any) -> Any:
    return coll.find({}, batch_size=2, session=session).to_list()


def _found_in_a_bound_session(coll: Any, session: Any) -> Any:
    def found() -> Any:
        with session.bind(end_session=False):
            return coll.find({}, batch_size=2).to_list()

    async def awaited() -> Any:
        async with session.bind(end_session=False):
            return await coll.find({}, batch_size=2).to_list()

    return awaited() if inspect.iscoroutinefunction(coll.insert_one) else found()


def _aggregated(coll: Any, session: Any) -> Any:
    made = coll.aggregate([{"$match": {}}], batchSize=2, session=session)

    async def awaited() -> Any:
        return await (await made).to_list()

    return awaited() if inspect.isawaitable(made) else made.to_list()


READS: dict[str, Read] = {
    "find": _found,
    "find, bound": _found_in_a_bound_session,
    "aggregate": _aggregated,
}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("read", READS)
def test_a_list_of_one_has_what_is_left(
    read: str, own: str, side: Side, proxy: ReplicaSet, control: Any, database: str,
    sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    """Whatever the driver or the library puts around a list, it is none of the callback's."""
    of_config, of_client, policy = OWN[own]
    instrument(**of_config)
    control[database].coll.insert_many([{} for _ in range(5)])
    client = side.client(proxy.uri, event_listeners=[sent], **of_client)
    coll = bind(client[database].coll, policy)
    with session_of(side, client, default_timeout_ms=LOW) as session:
        (found,) = run(side, session, lambda s: READS[read](coll, s))
    assert len(found) == 5
    first, *more = limits(sent, "find", "aggregate", "getMore")
    assert first in range(LOW // 2, LOW + 1)
    assert more == [None, None]


@pytest.mark.parametrize(
    "block", [lambda: override(timeout_ms=LONG), lambda: pymongo.timeout(LONG / 1000)]
)
@pytest.mark.parametrize("read", READS)
def test_a_list_in_a_block_of_the_callback_is_refused(
    read: str, block: Callable[[], contextlib.AbstractContextManager[Any]], side: Side,
    proxy: ReplicaSet, database: str, sent: SentCommands, instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    client = side.client(proxy.uri, event_listeners=[sent])
    with session_of(side, client, default_timeout_ms=LOW) as session:
        with pytest.raises(InvalidOperation, match="uses the rest of the transaction's timeout"):
            run(side, session, lambda s: READS[read](client[database].coll, s), block=block)
    assert sent.named("find", "aggregate") == []


def _closed_early(coll: Any, session: Any) -> Any:
    cursor = coll.find({}, batch_size=2, session=session)

    async def awaited() -> None:
        await cursor.next()
        await cursor.close()

    if inspect.iscoroutinefunction(coll.insert_one):
        return awaited()
    cursor.next()
    return cursor.close()


def test_its_close_has_what_is_left_too(
    side: Side, proxy: ReplicaSet, control: Any, database: str, sent: SentCommands,
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument(timeout_ms=LONG)
    control[database].coll.insert_many([{} for _ in range(5)])
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    with session_of(side, coll.database.client, default_timeout_ms=LOW) as session:
        run(side, session, lambda s: _closed_early(coll, s))
    (limit,) = limits(sent, "killCursors")
    assert limit in range(LOW // 2, LOW + 1)


def test_what_writes_cannot_go_by_iteration_there_either(
    side: Side, proxy: ReplicaSet, database: str, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    by_iteration = bind(coll, Policy(timeout_mode="iteration"))
    with session_of(side, coll.database.client, default_timeout_ms=LOW) as session:
        with pytest.raises(ConfigurationError, match=r"\$out"):
            run(side, session, lambda s: by_iteration.aggregate([{"$out": "there"}], session=s))
    assert sent.named("aggregate") == []


def test_a_method_bound_before_has_what_is_left(
    side: Side, proxy: ReplicaSet, database: str, sent: SentCommands, instrument: Instrument
) -> None:
    """pymongo puts the client's own timeout around it, which is none of the callback's."""
    coll = side.client(proxy.uri, event_listeners=[sent], timeoutMS=LONG)[database].coll
    insert = coll.insert_many
    instrument()
    with session_of(side, coll.database.client, default_timeout_ms=LOW) as session:
        run(side, session, lambda s: insert([{}], session=s))
    (limit,) = limits(sent, "insert")
    assert limit in range(LOW // 2, LOW + 1)
