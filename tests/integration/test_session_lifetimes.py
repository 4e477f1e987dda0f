"""A write is not repeated once the server may have ended the session that it was sent with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import InsertOne
from pymongo.errors import AutoReconnect, ClientBulkWriteException
from pymongo_resilience_instrumentation.retries import txn_number
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience import override
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import CutAfter, CutAtHandshake, Interception, Overload, ReplicaSet

WRITES: dict[str, Callable[[Any], Any]] = {
    "insert": lambda coll: coll.insert_one({}),
    "findAndModify": lambda coll: coll.find_one_and_update({}, {"$set": {"n": 1}}, upsert=True),
    "bulkWrite": lambda coll: coll.database.client.bulk_write(
        [InsertOne({}, namespace=coll.full_name)]
    ),
}


class EndsSessions(Interception):
    """A member that keeps no session that is not in use."""

    def on_hello(self, reply: Any) -> None:
        reply["logicalSessionTimeoutMinutes"] = 0


@pytest.fixture(params=[None, 20_000], ids=["bare", "timed"])
def instrumented(request: pytest.FixtureRequest, instrument: Instrument) -> Any:
    return instrument(timeout_ms=request.param, base_backoff_ms=1)


@pytest.fixture
def coll(
    side: Side, proxy: ReplicaSet, database: str, instrumented: Any, sent: SentCommands,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:  # fmt: skip
    """Of a server whose sessions end at once, as its client knows beforehand."""
    assert instrumented
    monkeypatch.setattr(txn_number, "DEFAULT_MINUTES", 0)
    return side.do(side.client, proxy.uri, event_listeners=[sent])[database].coll


@pytest.mark.parametrize("known", ["before", "when connected"])
@pytest.mark.parametrize("name", WRITES)
def test_what_may_be_applied_is_not_repeated(
    name: str, known: str, side: Side, proxy: ReplicaSet, instrumented: Any, coll: Any,
    sent: SentCommands, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if known == "when connected":
        monkeypatch.undo()
        proxy.inject(EndsSessions())
    side.do(coll.database.client.admin.command, "ping")
    proxy.inject(CutAfter(name))
    raised = (AutoReconnect, ClientBulkWriteException)
    with pytest.raises(raised, match="minutes ago, and the server may have ended its session"):
        side.do(WRITES[name], coll)
    assert len(sent.named(name)) == 1
    assert instrumented.decisions.events[-1].rule is Rule.NOT_SAFE


@pytest.mark.parametrize("fault", [CutAtHandshake(), Overload("insert")])
def test_what_is_not_applied_is(side: Side, proxy: ReplicaSet, coll: Any, fault: Any) -> None:
    proxy.inject(fault)
    side.do(coll.insert_one, {})


def test_what_is_declared_idempotent_is(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    proxy.inject(CutAfter("insert"))
    with override(idempotent=True):
        side.do(coll.insert_one, {"_id": 1})
    assert len(sent.named("insert")) == 2


def test_a_commit_is_not_repeated(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    """A server that has forgotten the transaction answers as if it had never been committed."""
    proxy.inject(CutAfter("commitTransaction"))
    with session_of(side, coll.database.client) as session:
        side.do(session.start_transaction)
        side.do(coll.insert_one, {}, session=session)
        with pytest.raises(AutoReconnect) as raised:
            side.do(session.commit_transaction)
    assert raised.value.has_error_label("UnknownTransactionCommitResult")
    assert len(sent.named("commitTransaction")) == 1
