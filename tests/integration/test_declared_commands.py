"""Commands that are declared idempotent are retried, and nothing else changes for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, PyMongoError
from pymongo_resilience_instrumentation.tools.testbed import CutAfter, CutBefore, NotPrimary
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import session_of

from pymongo_resilience import Policy, bind, override
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import ReplicaSet
from pymongo_resilience.testing import set_active

pytestmark = [pytest.mark.oldest, pytest.mark.each_setup]

Call = Callable[[Side, Any], Any]
OUT = [{"$match": {"_id": {"$gte": 3}}}, {"$out": "copy"}]
COMMANDS: dict[str, tuple[str, Call]] = {
    "a ping": ("ping", lambda side, db: side.do(db.command, "ping")),
    "a document": ("collStats", lambda side, db: side.do(db.command, {"collStats": "coll"})),
    "server_info": ("buildinfo", lambda side, db: side.do(db.client.server_info)),
    "validate_collection": (
        "validate", lambda side, db: side.do(db.validate_collection, "coll"),
    ),
    "drop_database": (
        "dropDatabase", lambda side, db: side.do(db.client.drop_database, f"{db.name}_other"),
    ),
    "$out": ("aggregate", lambda side, db: side.do(db.coll.aggregate, OUT)),
    "$out by cursor_command": (
        "aggregate",
        lambda side, db: side.do(
            db.cursor_command, "aggregate", "coll", pipeline=OUT, cursor={}
        ),
    ),
}  # fmt: skip
DECLARED = Policy(idempotent=True)


@pytest.fixture
def filled(control: Any, database: str) -> str:
    with set_active(False):
        control[database].coll.insert_many([{"_id": n} for n in range(5)])
    return database


def ready(side: Side, proxy: ReplicaSet, name: str, **options: Any) -> Any:
    """A database of a client whose connection is made."""
    db = side.client(proxy.uri, **options)[name]
    side.do(db.coll.find_one)
    return db


@pytest.mark.parametrize("name", COMMANDS)
def test_a_declared_command_survives_what_ends_it_in_plain_pymongo(
    name: str,
    side: Side,
    proxy: ReplicaSet,
    filled: str,
    control: Any,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Otherwise, plain pymongo is slow to find its server again after "not primary".
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.001)
    instrument()
    db = ready(side, proxy, filled)
    command, call = COMMANDS[name]
    for fault in (CutBefore, CutAfter, NotPrimary):
        for block in (set_active(False), nullcontext()):
            proxy.inject(struck := fault(command))
            with block, pytest.raises(AutoReconnect):
                call(side, db)
            assert struck.injected == 1
        proxy.inject(struck := fault(command))
        with override(idempotent=True):
            call(side, db)
        assert struck.injected == 1
    if command == "aggregate":
        with set_active(False):
            assert [each["_id"] for each in control[filled]["copy"].find()] == [3, 4]


@pytest.mark.parametrize("how", ["a block", "a bound database", "a rule"])
def test_each_way_to_declare_counts(
    how: str, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    instrument(policies={f"{filled}.*": DECLARED} if how == "a rule" else None)
    db = ready(side, proxy, filled)
    proxy.inject(CutBefore("ping"))
    with override(idempotent=True) if how == "a block" else nullcontext():
        target = bind(db, DECLARED) if how == "a bound database" else db
        assert side.do(target.command, "ping")["ok"] == 1


def test_all_attempts_are_the_same_command_in_the_same_session(
    side: Side, proxy: ReplicaSet, filled: str, sent: SentCommands, instrument: Instrument
) -> None:
    instrument()
    db = ready(side, proxy, filled, event_listeners=[sent])
    proxy.inject(CutAfter("count"))
    with override(idempotent=True):
        reply = side.do(db.command, {"count": "coll", "query": {"_id": {"$gt": 2}}, "limit": 1})
    assert reply["n"] == 1
    own = {"$clusterTime", "maxTimeMS"}
    first, second = (
        {key: value for key, value in command.items() if key not in own}
        for command in sent.named("count")
    )
    assert first == second


def test_a_declared_command_leaves_no_more_cursors_than_a_find_of_plain_pymongo(
    side: Side, proxy: ReplicaSet, filled: str, sent: SentCommands, instrument: Instrument
) -> None:
    """Whoever loses the reply to a find does not know its cursor: each attempt opens one."""
    instrument()
    db = ready(side, proxy, filled, event_listeners=[sent])
    counts = []
    for plain in (True, False):
        sent.started_events.clear()
        proxy.inject(CutAfter("find"))
        if plain:
            with set_active(False):
                assert len(side.documents(db.coll.find(batch_size=2))) == 5
        else:
            with override(idempotent=True):
                reply = side.do(db.command, {"find": "coll", "batchSize": 2})
        counts.append(len(sent.named("find")))
    assert counts == [2, 2]
    # The application gets the cursor of the last attempt from its beginning.
    cursor = reply["cursor"]
    assert [each["_id"] for each in cursor["firstBatch"]] == [0, 1]
    killed = side.do(db.command, {"killCursors": "coll", "cursors": [cursor["id"]]})
    assert killed["cursorsKilled"] == [cursor["id"]]


@pytest.mark.parametrize("declared", [False, True])
def test_a_command_in_a_transaction_is_not_retried(
    declared: bool, side: Side, proxy: ReplicaSet, filled: str, instrument: Instrument
) -> None:
    telemetry = instrument()
    db = ready(side, proxy, filled)
    cut = CutAfter("find", times=9)
    with override(idempotent=declared), session_of(side, db.client) as session:
        side.do(session.start_transaction)
        proxy.inject(cut)
        with pytest.raises(PyMongoError) as caught:
            side.do(db.command, {"find": "coll"}, session=session)
        assert cut.injected == 1
        proxy.clear()
        side.do(session.abort_transaction)
    assert caught.value.has_error_label("TransientTransactionError")
    (rule,) = {each.rule for each in telemetry.decisions.events if hasattr(each, "rule")}
    assert rule is Rule.NEVER_RETRIED
