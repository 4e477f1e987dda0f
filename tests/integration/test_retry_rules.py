"""The rules at work on real sockets: what is repeated, and above all what is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pymongo
import pytest
from pymongo.errors import AutoReconnect, PyMongoError
from pymongo_resilience_instrumentation.tools.testbed import (
    CutAfter,
    CutBefore,
    Fail,
    NotPrimary,
    Refuse,
)
from support.clients import Side
from support.telemetry import Instrument
from support.transactions import commit, session_of

from pymongo_resilience import override
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest

INC = {"$inc": {"n": 1}}
OUT = [{"$out": "other"}]


@pytest.fixture(autouse=True)
def background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the failures make a client look at its server again before it can go on; a cursor
    that could not be closed is closed by the driver's background task, here never."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.001)
    monkeypatch.setattr("pymongo.common.KILL_CURSOR_FREQUENCY", 3600.0)


@pytest.fixture
def ready(side: Side, proxy: ReplicaSet) -> Any:
    """A client of the side whose connection is made: faults hit the operation, not the start."""
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    return client


def _kill_cursor(side: Side, coll: Any) -> None:
    cursor = coll.find(batch_size=2)
    side.do(cursor.next)
    side.do(cursor.close)


def _in_a_transaction(method: str, *args: Any) -> Callable[[Side, Any], None]:
    def call(side: Side, coll: Any) -> None:
        with session_of(side, coll.database.client) as session:
            side.do(session.start_transaction)
            side.do(getattr(coll, method), *args, session=session)

    return call


NEVER = Rule.NEVER_RETRIED
CALLS: dict[str, tuple[Callable[[Side, Any], Any], str, Rule | None]] = {
    "a read": (lambda side, coll: side.do(coll.find_one), "find", None),
    "a write with a number": (lambda side, coll: side.do(coll.insert_one, {}), "insert", None),
    "a commit": (commit, "commitTransaction", None),
    "update_many": (
        lambda side, coll: side.do(coll.update_many, {}, INC), "update", Rule.NOT_SAFE,
    ),
    "delete_many": (
        lambda side, coll: side.do(coll.delete_many, {"a": 1}), "delete", Rule.NOT_SAFE,
    ),
    "getMore": (lambda side, coll: side.documents(coll.find(batch_size=2)), "getMore", NEVER),
    "killCursors": (_kill_cursor, "killCursors", NEVER),
    "a command": (lambda side, coll: side.do(coll.database.command, "ping"), "ping", NEVER),
    "a command with $out": (
        lambda side, coll: side.do(
            coll.database.cursor_command, "aggregate", "coll", pipeline=OUT, cursor={}
        ),
        "aggregate", NEVER,
    ),
    "$out": (lambda side, coll: side.do(coll.aggregate, OUT), "aggregate", NEVER),
    "a read in a transaction": (_in_a_transaction("find_one"), "find", NEVER),
    "a write in a transaction": (_in_a_transaction("insert_one", {}), "insert", NEVER),
}  # fmt: skip
"""The call, its command, and the rule that keeps it from being repeated after a lost reply."""
DECLARABLE = {"a command", "a command with $out", "$out"}
"""Those of rule 0 that are repeated if they are declared idempotent."""
FAILURES: dict[str, tuple[Callable[[str], Any], Rule | None]] = {
    "cut before": (CutBefore, None),
    "cut after": (CutAfter, None),
    "not primary": (NotPrimary, None),
    "host unreachable": (lambda command: Fail(command, code=6), None),
    "write conflict": (lambda command: Fail(command, code=112), None),
    "busy": (lambda command: Fail(command, code=6, labels=["SystemOverloadedError"]), None),
    "unknown": (lambda command: Fail(command, code=2), Rule.UNKNOWN_REASON),
}
"""With the rule by which nothing is repeated after it."""


@pytest.mark.parametrize("name", CALLS)
def test_each_call_after_each_failure(
    name: str, side: Side, ready: Any, proxy: ReplicaSet, database: str, control: Any,
    instrument: Instrument,
) -> None:  # fmt: skip
    telemetry = instrument(timeout_ms=20_000, base_backoff_ms=1, retry_budget="off")
    control[database].coll.insert_many([{} for _ in range(5)])
    call, command, rule = CALLS[name]
    for failure, (fault, final) in FAILURES.items():
        side.do(ready.admin.command, "ping")
        telemetry.clear()
        struck = fault(command)
        proxy.inject(struck)
        # Rule 0 holds for most of what is declared idempotent, too.
        declared = rule is NEVER and name not in DECLARABLE
        with override(idempotent=declared), contextlib.suppress(PyMongoError):
            call(side, ready[database].coll)
        assert struck.injected == 1
        # The abort at the end of a transaction's block may fail: none began on the server.
        events = telemetry.decisions.events
        events = [each for each in events if each.operation != "abortTransaction"]
        expected = rule if rule is NEVER else final or rule
        assert [getattr(each, "rule", None) for each in events] == [expected], failure


def test_an_unacknowledged_write_is_never_retried(
    side: Side, ready: Any, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    unacknowledged = ready[database].get_collection("coll", write_concern=pymongo.WriteConcern(w=0))
    proxy.inject(CutBefore("ping"))
    with pytest.raises(AutoReconnect):
        side.do(ready.admin.command, "ping")
    telemetry.clear()
    proxy.inject(Refuse(0.3))
    with override(idempotent=True), contextlib.suppress(AutoReconnect):
        side.do(unacknowledged.insert_one, {"_id": 1})
    # A handshake that was cut is an overload to pymongo 4.18 and later: nothing was sent then.
    scheduled = {event.reason for event in telemetry.decisions.events if hasattr(event, "delay")}
    assert scheduled <= {RetryReason.OVERLOADED}


@pytest.mark.parametrize("option", ["retryWrites", "retryReads"])
def test_what_the_client_switched_off_stays_off(
    option: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    client = side.client(proxy.uri, **{option: False})
    side.do(client.admin.command, "ping")
    names = ["a read", "a write with a number"]
    off, on = names if option == "retryReads" else reversed(names)
    call, command, _ = CALLS[off]
    proxy.inject(CutBefore(command))
    with pytest.raises(AutoReconnect):
        call(side, client[database].coll)
    # Without the option, a write has no number that would make its repetition safe.
    rule = Rule.SWITCHED_OFF if option == "retryReads" else Rule.NOT_SAFE
    assert [event.rule for event in telemetry.decisions.events] == [rule]
    call, command, _ = CALLS[on]
    proxy.inject(CutBefore(command, times=2))
    call(side, client[database].coll)
