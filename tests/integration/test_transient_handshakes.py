"""A connection whose handshake a member answered while it was neither primary nor secondary."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import WriteConcern
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import commit

from pymongo_resilience.testbed import CutAfter, Interception, ReplicaSet

pytestmark = pytest.mark.oldest


class SteppingDown(Interception):
    """Each hello is that of a member in between."""

    def on_hello(self, reply: dict[str, Any]) -> None:
        self.injected += 1
        reply.update(isWritablePrimary=False, ismaster=False, secondary=False)


def _unacknowledged(side: Side, coll: Any) -> Any:
    side.do(coll.with_options(write_concern=WriteConcern(w=0)).insert_one, {"_id": 1})


WRITES: dict[str, Callable[[Side, Any], Any]] = {
    "a retryable write": lambda side, coll: side.do(coll.insert_one, {"_id": 1}),
    "a transaction": commit,
    "an unacknowledged write": _unacknowledged,
}


@pytest.fixture(params=[None, 20_000], ids=["bare", "with a timeout"])
def started(
    request: pytest.FixtureRequest, side: Side, replica_set: ReplicaSet, instrument: Instrument
) -> Callable[..., Any]:
    """``started(**options)``: a client of a set whose primary is known."""

    def start(**options: Any) -> Any:
        instrument(timeout_ms=request.param)
        streaming = {"serverMonitoringMode": "stream", "heartbeatFrequencyMS": 60_000}
        client = side.client(replica_set.uri, **streaming, **options)
        if side.runner is not None:
            side.do(client.aconnect)
        side.wait_for_members(client, 3)
        side.wait_until(lambda: side.do(lambda: client.primary))
        return client

    return start


@pytest.mark.parametrize("what", WRITES)
def test_it_serves_like_any_other(
    what: str, side: Side, replica_set: ReplicaSet, database: str, started: Callable[..., Any]
) -> None:
    client = started(maxPoolSize=1)
    fault = SteppingDown()
    replica_set.inject(fault, on="primary")
    side.do(client.admin.command, "ping")
    assert fault.struck
    replica_set.clear()
    coll = client[database].coll
    if what == "a retryable write":
        replica_set.inject(CutAfter("insert"))
    WRITES[what](side, coll)
    side.wait_until(lambda: side.do(coll.count_documents, {}) == 1)


def test_it_aborts_the_transaction_that_another_one_began(
    side: Side, replica_set: ReplicaSet, database: str, sent: SentCommands,
    started: Callable[..., Any],
) -> None:  # fmt: skip
    """Without its session the abort would fail unseen, and leave the transaction open."""
    # Each command has a connection of its own.
    client = started(maxIdleTimeMS=1, event_listeners=[sent])
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
