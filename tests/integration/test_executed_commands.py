"""A reply that shows that the command ran is no rejection, whatever labels it carries.

A command that was rejected as overloaded is repeated, whatever it is; one that ran would be applied
twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import IndexModel, UpdateMany, WriteConcern
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.testbed.command_faults import OnCommand
from pymongo_resilience_instrumentation.tools.testbed.fault import Amend
from support.clients import SentCommands, Side
from support.servers import cases
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

LABELS = [RETRYABLE, SYSTEM_OVERLOADED]
INC = {"$inc": {"n": 1}}
ERROR = {"code": 462, "codeName": "IngressRequestRateLimitExceeded", "errmsg": "overloaded"}

COMMANDS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "update_many": ("update", lambda _, coll: coll.update_many({}, INC)),
    "update_one": ("update", lambda _, coll: coll.update_one({}, INC)),
    "findAndModify": ("findAndModify", lambda _, coll: coll.find_one_and_update({}, INC)),
    "bulk_write": ("update", lambda _, coll: coll.bulk_write([UpdateMany({}, INC)])),
    "client's bulk_write": (
        "bulkWrite",
        lambda client, coll: client.bulk_write([UpdateMany({}, INC, namespace=coll.full_name)]),
    ),
    "create_indexes": (
        "createIndexes",
        lambda _, coll: coll.create_indexes([IndexModel("other")]),
    ),
}
NUMBERED = {"update_one", "findAndModify"}
REPLIES: dict[str, dict[str, Any]] = {
    "a write concern error": {"writeConcernError": ERROR, "errorLabels": LABELS},
    "its own labels": {"writeConcernError": {**ERROR, "errorLabels": LABELS}},
    "a write error": {
        "writeErrors": [{"index": 0, **ERROR, "errorLabels": LABELS}],
        "errorLabels": LABELS,
    },
    "not ok": {"ok": 0.0, **ERROR, "writeConcernError": ERROR, "errorLabels": LABELS},
}


class Amended(OnCommand):
    """Lets the server execute the command, and changes its reply."""

    def __init__(self, command: str, fields: dict[str, Any], times: int = 5) -> None:
        super().__init__(command, times)
        self._fields = fields

    def verdict(self, request: Any) -> Any:
        del request
        return Amend(self._fields)


@pytest.mark.parametrize("timeout_ms", [None, 20_000])
@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", cases(COMMANDS, {"client's bulk_write": "8.0"}))
def test_what_ran_is_not_repeated_as_rejected(
    name: str,
    reply: str,
    timeout_ms: int | None,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    control: Any,
    instrument: Instrument,
) -> None:
    telemetry = instrument(base_backoff_ms=1, timeout_ms=timeout_ms)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    control[database].coll.insert_one({"_id": 0, "n": 0})
    command, call = COMMANDS[name]
    proxy.inject(Amended(command, REPLIES[reply]))
    with contextlib.suppress(PyMongoError):
        side.do(call, client, client[database].coll)
    # Of one with a number, the server answers as it did, and applies nothing again.
    numbers = [each.get("txnNumber") for each in sent.named(command)]
    assert len(numbers) == 1 or (name in NUMBERED and set(numbers) == {1})
    assert all(event.reason is not RetryReason.OVERLOADED for event in telemetry.decisions.events)
    if name != "create_indexes":
        assert control[database].coll.find_one() == {"_id": 0, "n": 1}


@pytest.mark.parametrize("labels", [LABELS, [SYSTEM_OVERLOADED]])
def test_a_commit_that_ran_asks_for_a_majority_when_it_is_repeated(
    labels: list[str], side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    """It is repeated by its own rule, and counts as one that was executed."""
    instrument(base_backoff_ms=1)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client[database].create_collection, "coll")

    error = {"code": 91, "errmsg": "shutting down"}
    reply = {"writeConcernError": error, "errorLabels": labels}
    with session_of(side, client) as session:
        side.do(session.start_transaction, write_concern=WriteConcern(1))
        side.do(client[database].coll.insert_one, {}, session=session)
        proxy.inject(Amended("commitTransaction", reply, times=1))
        side.do(session.commit_transaction)
    concerns = [each["writeConcern"]["w"] for each in sent.named("commitTransaction")]
    assert concerns == [1, "majority"]
