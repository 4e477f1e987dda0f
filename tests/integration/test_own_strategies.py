"""What a strategy of the application's own sees, and what becomes of its delay."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import InsertOne
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, CutBefore, Overload
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience import override
from pymongo_resilience.strategies import Failure, RetryAction, RetryState
from pymongo_resilience.testbed import ReplicaSet, Standalone

pytestmark = pytest.mark.oldest

INC = {"$inc": {"n": 1}}


class OfTheRFC:
    """Couchbase RFC 0049, "Best Effort": what is idempotent, and what has changed nothing."""

    def __init__(self) -> None:
        self.seen: list[RetryState] = []

    def retry_after(self, operation: RetryState, failure: Failure) -> RetryAction | None:
        self.seen.append(operation)
        if operation.idempotent or failure.reason.allows_non_idempotent_retry:
            return RetryAction()
        return None


CALLS: dict[str, tuple[str, Any]] = {
    "find": ("find", lambda coll: coll.find_one()),
    "insert": ("insert", lambda coll: coll.insert_one({})),
    "findAndModify": ("findAndModify", lambda coll: coll.find_one_and_update({}, INC)),
    "bulkWrite": ("insert", lambda coll: coll.bulk_write([InsertOne({})])),
}


@pytest.mark.parametrize("name", CALLS)
def test_reads_and_numbered_writes_are_idempotent(
    name: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    strategy = OfTheRFC()
    instrument(strategy=strategy)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    command, call = CALLS[name]
    proxy.inject(CutAfter(command))
    side.do(call, coll)
    [operation] = strategy.seen
    assert (operation.idempotent, operation.declared_idempotent) == (True, False)


@pytest.mark.parametrize("declared", [False, True])
def test_another_write_is_what_the_caller_declares(
    declared: bool, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    strategy = OfTheRFC()
    instrument(strategy=strategy, base_backoff_ms=1)
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.find_one)
    proxy.inject(Overload("update"))
    with override(idempotent=declared, data={"robot": True}):
        side.do(coll.update_many, {}, INC)
    [operation] = strategy.seen
    facts = operation.name, operation.idempotent, operation.declared_idempotent, operation.data
    assert facts == ("update", declared, declared, {"robot": True})


def test_without_a_number_on_the_wire_a_write_is_not_idempotent(
    server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    """A standalone server knows none; only what was never sent is repeated there."""
    strategy = OfTheRFC()
    telemetry = instrument(strategy=strategy, base_backoff_ms=1)
    side = Side("sync", None)
    with Standalone(server.address) as standalone:
        coll = side.client(standalone.uri)[database].coll
        side.do(coll.find_one)
        standalone.inject(CutBefore("insert"))
        with pytest.raises(PyMongoError):
            side.do(coll.insert_one, {})
        side.close()
    assert strategy.seen == []
    assert [event.rule.value for event in telemetry.decisions.events] == ["not_safe"]
