"""A write is not repeated once the server may have ended the session that it was sent with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo import InsertOne
from pymongo.errors import AutoReconnect, ClientBulkWriteException
from pymongo_resilience_instrumentation import driver
from support.clients import SentCommands, Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import CutAfter, CutAtHandshake, Interception, Overload, ReplicaSet

TIMEOUTS = pytest.mark.parametrize("timeout_ms", [None, 20_000])
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


def client_of(
    side: Side, proxy: ReplicaSet, monkeypatch: pytest.MonkeyPatch, known: str
) -> tuple[Any, SentCommands]:
    """Of a server whose sessions end at once, which is known before the retry or with its
    connection."""
    if known == "before":
        monkeypatch.setattr(driver.sessions, "DEFAULT_MINUTES", 0)
    else:
        proxy.inject(EndsSessions())
    sent = SentCommands()
    client = side.do(side.client, proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    return client, sent


@TIMEOUTS
@pytest.mark.parametrize("known", ["before", "when connected"])
@pytest.mark.parametrize("name", WRITES)
def test_what_may_be_applied_is_not_repeated(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int | None,
    known: str,
    name: str,
) -> None:
    telemetry = instrument(timeout_ms=timeout_ms)
    client, sent = client_of(side, proxy, monkeypatch, known)
    proxy.inject(CutAfter(name))
    raised = (AutoReconnect, ClientBulkWriteException)
    with pytest.raises(raised, match="minutes ago, and its session may have ended"):
        side.do(WRITES[name], client[database].coll)
    assert len(sent.named(name)) == 1
    assert telemetry.decisions.events[-1].rule is Rule.NOT_SAFE


@TIMEOUTS
@pytest.mark.parametrize("fault", [CutAtHandshake(), Overload("insert")])
def test_what_is_not_applied_is(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int | None,
    fault: Any,
) -> None:
    instrument(timeout_ms=timeout_ms, base_backoff_ms=1)
    monkeypatch.setattr(driver.sessions, "DEFAULT_MINUTES", 0)
    client = side.do(side.client, proxy.uri)
    proxy.inject(fault)
    side.do(client[database].coll.insert_one, {})


@TIMEOUTS
def test_what_is_declared_idempotent_is(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int | None,
) -> None:
    instrument(timeout_ms=timeout_ms)
    client, sent = client_of(side, proxy, monkeypatch, "before")
    proxy.inject(CutAfter("insert"))
    with override(idempotent=True):
        side.do(client[database].coll.insert_one, {"_id": 1})
    assert len(sent.named("insert")) == 2


@TIMEOUTS
def test_a_commit_is_not_repeated(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int | None,
) -> None:
    """A server that has forgotten the transaction answers as if it had never been committed."""
    instrument(timeout_ms=timeout_ms)
    client, sent = client_of(side, proxy, monkeypatch, "before")
    proxy.inject(CutAfter("commitTransaction"))
    session = side.do(client.start_session)
    side.do(session.start_transaction)
    side.do(client[database].coll.insert_one, {}, session=session)
    with pytest.raises(AutoReconnect) as raised:
        side.do(session.commit_transaction)
    assert raised.value.has_error_label("UnknownTransactionCommitResult")
    assert len(sent.named("commitTransaction")) == 1
    side.do(session.end_session)
