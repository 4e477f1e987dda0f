"""A connection whose handshake a member answered while it was neither primary nor secondary."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import WriteConcern
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience.testbed import CutAfter, Interception, ReplicaSet

pytestmark = pytest.mark.oldest


class SteppingDown(Interception):
    """Each hello is that of a member in between."""

    def on_hello(self, reply: dict[str, Any]) -> None:
        self.injected += 1
        reply.update(isWritablePrimary=False, ismaster=False, secondary=False)


async def _in_transaction(coll: Any, client: Any) -> None:
    async with client.start_session() as session, await session.start_transaction():
        await coll.insert_one({"_id": 1}, session=session)


def _in_transaction_sync(coll: Any, client: Any) -> None:
    with client.start_session() as session, session.start_transaction():
        coll.insert_one({"_id": 1}, session=session)


def _unacknowledged(coll: Any, _: Any) -> Any:
    return coll.with_options(write_concern=WriteConcern(w=0)).insert_one({"_id": 1})


WRITES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a retryable write": (lambda coll, _: coll.insert_one({"_id": 1}),) * 2,
    "a transaction": (_in_transaction_sync, _in_transaction),
    "an unacknowledged write": (_unacknowledged,) * 2,
}


@pytest.mark.parametrize("timeout_ms", [None, 20_000], ids=["bare", "with a timeout"])
@pytest.mark.parametrize("what", WRITES)
def test_it_serves_like_any_other(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    what: str,
    timeout_ms: int | None,
) -> None:
    instrument(timeout_ms=timeout_ms)
    options = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 60_000, "maxPoolSize": 1}
    client = side.client(replica_set.uri, **options)
    if side.runner is not None:
        side.do(client.aconnect)
    side.wait_for_members(client, 3)
    side.wait_until(lambda: side.do(lambda: client.primary))
    fault = SteppingDown()
    replica_set.inject(fault, on="primary")
    side.do(client.admin.command, "ping")
    assert fault.struck
    replica_set.clear()
    coll = client[database].coll
    if what == "a retryable write":
        replica_set.inject(CutAfter("insert"))
    side.do(WRITES[what][side.runner is not None], coll, client)
    side.wait_until(lambda: side.do(coll.count_documents, {}) == 1)


@pytest.mark.parametrize("timeout_ms", [None, 20_000], ids=["bare", "with a timeout"])
def test_it_aborts_the_transaction_that_another_one_began(
    side: Side,
    replica_set: ReplicaSet,
    database: str,
    instrument: Instrument,
    sent: SentCommands,
    timeout_ms: int | None,
) -> None:
    """Without its session the abort would fail unseen, and leave the transaction open."""
    instrument(timeout_ms=timeout_ms)
    options = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 60_000}
    # Each command has a connection of its own.
    client = side.client(replica_set.uri, maxIdleTimeMS=1, event_listeners=[sent], **options)
    if side.runner is not None:
        side.do(client.aconnect)
    side.wait_for_members(client, 3)
    side.wait_until(lambda: side.do(lambda: client.primary))
    coll = client[database].coll
    session = client.start_session()
    side.do(session.start_transaction)
    side.do(coll.insert_one, {"_id": 1}, session=session)
    fault = SteppingDown()
    replica_set.inject(fault, on="primary")
    time.sleep(0.05)
    side.do(session.abort_transaction)
    assert fault.struck
    replica_set.clear()
    (abort,) = sent.named("abortTransaction")
    assert abort["txnNumber"] == sent.named("insert")[0]["txnNumber"]
    side.do(session.end_session)
    assert side.do(coll.count_documents, {}) == 0
    side.do(coll.insert_one, {"_id": 1})
