"""``resumable="if_possible"``: what can be resumed is, and everything else runs unchanged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo.errors import AutoReconnect, CursorNotFound, ExecutionTimeout, OperationFailure
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_budget import READS_PER_HEDGE
from pymongo_resilience_instrumentation.features.resumable_finds import scan
from support.clients import SentCommands, Side
from support.resumable_finds import keys
from support.scans import (
    BATCH,
    COUNT,
    FAULTS as FAULTS_OF_FINDS,
    PLENTY_MS,
    client,
    coll,
    lose_server_of,
    nearest,
    order,
    rest,
    telemetry,
)
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience import Policy, bind, override
from pymongo_resilience.errors import ConfigurationError, OperationTimeoutError
from pymongo_resilience.testbed import (
    CutBefore,
    Election,
    Fail,
    Overload,
    ReplicaSet,
    ShardedCluster,
    Slow,
)
from pymongo_resilience.testing import set_active

__all__ = ["client", "coll", "order", "telemetry"]

pytestmark = [pytest.mark.oldest, pytest.mark.each_setup]

IF_POSSIBLE: Any = "if_possible"
OTHERS = pytest.mark.thorough("each pair is among the others")
Open = Callable[[Side, Any], Any]
RESUMABLE: dict[str, tuple[Open, bool]] = {
    "unsorted": (lambda _, coll: coll.find({"n": {"$gte": 0}}, batch_size=BATCH), False),
    "backward": (lambda _, coll: coll.find({}, sort={"_id": -1}, batch_size=BATCH), True),
    "without _id": (lambda _, coll: coll.find({}, {"_id": 0, "n": 1}, batch_size=BATCH), False),
    "aggregate": (
        lambda side, coll: side.do(
            coll.aggregate, [{"$match": {"n": {"$gte": 0}}}, {"$match": {"n": {"$lt": COUNT}}}],
            batchSize=BATCH,
        ),
        False,
    ),
    "aggregate all": (lambda side, coll: side.do(coll.aggregate, [], batchSize=BATCH), False),
    "aggregate backward": (
        lambda side, coll: side.do(
            coll.aggregate, pipeline=[{"$match": {}}, {"$sort": {"_id": -1}}], batchSize=BATCH,
        ),
        True,
    ),
}  # fmt: skip
FAULTS: dict[str, Callable[[], Any]] = {
    **FAULTS_OF_FINDS,
    "time limit of the server": lambda: Fail("getMore", code=50),
}


def opened(side: Side, coll: Any, make: Open, wanted: Any = IF_POSSIBLE) -> tuple[Any, list[Any]]:
    """A cursor, and the documents of its first batch."""
    with override(resumable=wanted):
        cursor = make(side, coll)
        return cursor, [side.do(cursor.next) for _ in range(BATCH)]


def shape(sent: SentCommands, name: str) -> list[dict[str, Any]]:
    """The commands of that name, without what differs between any two."""
    own = {"lsid", "$clusterTime", "maxTimeMS"}
    return [
        {key: value for key, value in command.items() if key not in own}
        for command in sent.named(name)
    ]


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        pytest.param(make, fault, marks=[] if fault == some else OTHERS)
        for make, some in zip(RESUMABLE, FAULTS, strict=True)
        for fault in FAULTS
    ],
)
def test_a_scan_that_dies_in_plain_pymongo_comes_to_its_end(
    make: str, fault: str, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Otherwise, plain pymongo is slow to find its server again after "not primary".
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.001)
    call, backward = RESUMABLE[make]
    for plain in (True, False):
        with set_active(False) if plain else nullcontext():
            cursor, found = opened(side, coll, call)
            proxy.inject(FAULTS[fault]())
            if plain:
                with pytest.raises((AutoReconnect, OperationFailure)):
                    side.documents(cursor)
            else:
                found += rest(side, cursor)
        proxy.clear()
    if make == "without _id":
        assert [[*each] for each in found] == [["n"]] * COUNT
        assert {each["n"] for each in found} == {*range(COUNT)}
    else:
        assert keys(found) == (order[::-1] if backward else order)


@pytest.mark.parametrize("codec", ["plain", "clamped"])
def test_an_aggregate_continues_after_each_type_of_id(
    codec: str, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    """Also if the application's codec changes the values: the server's own are continued after."""
    if codec == "clamped":
        coll = coll.with_options(
            CodecOptions(tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_CLAMP)
        )
    with override(resumable=IF_POSSIBLE):
        cursor = side.do(coll.aggregate, [{"$match": {}}], batchSize=2)
    found = [side.do(cursor.next), side.do(cursor.next)]
    while cursor.alive:
        proxy.inject(Fail("getMore", code=43))
        with override(timeout_ms=PLENTY_MS):
            found += side.do(cursor.to_list, 2)
    assert keys(found) == order


UNCHANGED: dict[str, tuple[str, Open]] = {
    "another sort": ("find", lambda _, coll: coll.find(sort={"n": 1}, batch_size=BATCH)),
    "a limit": ("find", lambda _, coll: coll.find({}, limit=30, batch_size=BATCH)),
    "a skip": ("find", lambda _, coll: coll.find({}, skip=5, batch_size=BATCH)),
    "another hint": ("find", lambda _, coll: coll.find({}, hint="n_1", batch_size=BATCH)),
    "$natural": ("find", lambda _, coll: coll.find({}, hint=[("$natural", 1)], batch_size=BATCH)),
    "a collation": (
        "find", lambda _, coll: coll.find({}, collation={"locale": "simple"}, sort={"n": 1},
                                          batch_size=BATCH),
    ),
    "its _id is computed": (
        "find", lambda _, coll: coll.find({}, {"_id": "$n"}, batch_size=BATCH),
    ),
    "$group": (
        "aggregate", lambda side, coll: side.do(
            coll.aggregate, [{"$match": {}}, {"$group": {"_id": "$n"}}], batchSize=BATCH),
    ),
    "$sort by another field": (
        "aggregate", lambda side, coll: side.do(
            coll.aggregate, [{"$match": {}}, {"$sort": {"n": 1}}], batchSize=BATCH),
    ),
    "an aggregate with a hint": (
        "aggregate", lambda side, coll: side.do(
            coll.aggregate, [{"$match": {}}], hint="n_1", batchSize=BATCH),
    ),
    "a view": ("find", lambda _, coll: coll.database.view.find({}, batch_size=BATCH)),
    "a view aggregated": (
        "aggregate", lambda side, coll: side.do(
            coll.database.view.aggregate, [{"$match": {"n": 1}}, {"$match": {}}], batchSize=BATCH),
    ),
    "a capped collection": ("find", lambda _, coll: coll.database.capped.find(batch_size=BATCH)),
    "no collection": ("find", lambda _, coll: coll.database.nothing.find(batch_size=BATCH)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCHANGED)
def test_everything_else_is_sent_as_without_it(
    name: str, side: Side, coll: Any, control: Any, database: str, sent: SentCommands
) -> None:
    with set_active(False):
        db = control[database]
        db.coll.create_index("n", name="n_1")
        db.create_collection("view", viewOn="coll", pipeline=[{"$sort": {"n": -1}}])
        db.create_collection("capped", capped=True, size=100_000)
        db.capped.insert_many([{"_id": COUNT - n} for n in range(COUNT)])
    command, call = UNCHANGED[name]
    results = []
    for wanted in (None, IF_POSSIBLE):
        with override(resumable=wanted):
            results.append([bson.encode(each) for each in side.documents(call(side, coll))])
    without, with_it = shape(sent, command)
    assert with_it == without
    assert results[0] == results[1]


def test_a_transaction_and_a_snapshot_run_as_without_it(
    side: Side, client: Any, coll: Any, sent: SentCommands
) -> None:
    with override(resumable=IF_POSSIBLE):
        session = client.start_session()
        side.do(session.start_transaction)
        assert len(side.documents(coll.find(session=session))) == COUNT
        assert len(side.documents(side.do(coll.aggregate, [{"$match": {}}], session))) == COUNT
        side.do(session.commit_transaction)
        side.do(session.end_session)
    assert not any("sort" in each for each in sent.named("find"))
    (aggregate,) = sent.named("aggregate")
    assert aggregate["pipeline"] == [{"$match": {}}]


@pytest.mark.parametrize("how", ["override", "binding", "rule", "file"])
def test_wherever_it_is_set(
    how: str, side: Side, proxy: ReplicaSet, database: str, order: list[bytes],
    instrument: Instrument, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    policy = Policy(resumable=IF_POSSIBLE)
    if how == "file":
        file = tmp_path / "resilience.toml"
        file.write_text(f'[policies."{database}.*"]\nresumable = "if_possible"\n')
        monkeypatch.setenv("PYMONGO_RESILIENCE_CONFIG", str(file))
    if how == "file":
        pymongo_resilience.instrument()
    else:
        instrument(policies={f"{database}.*": policy} if how == "rule" else None)
    coll = side.client(proxy.uri)[database].coll
    if how == "binding":
        coll = bind(coll, policy)
    for make in ("unsorted", "aggregate"):
        with override(resumable=IF_POSSIBLE if how == "override" else None):
            cursor = RESUMABLE[make][0](side, coll)
            found = [side.do(cursor.next)]
        proxy.inject(CutBefore("getMore"))
        assert keys(found + rest(side, cursor)) == order
    # In the same namespace, others are not refused.
    with override(resumable=IF_POSSIBLE if how == "override" else None):
        assert len(side.documents(coll.find(sort={"n": 1}))) == COUNT


def test_it_ends_with_an_inner_block(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    coll = bind(coll, Policy(resumable=IF_POSSIBLE))
    for make in ("unsorted", "aggregate"):
        cursor, _ = opened(side, coll, RESUMABLE[make][0], wanted=False)
        proxy.inject(CutBefore("getMore"))
        with pytest.raises(AutoReconnect):
            side.documents(cursor)
    assert not sent.named("listCollections")


def test_the_kind_of_a_collection_is_read_once(
    side: Side, coll: Any, sent: SentCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again after some time, because another one may have its name by then."""
    with override(resumable=IF_POSSIBLE):
        for _ in range(3):
            assert len(side.documents(coll.find())) == COUNT
            assert len(side.documents(side.do(coll.aggregate, [{"$match": {}}]))) == COUNT
        assert len(sent.named("listCollections")) == 1
        monkeypatch.setattr(scan, "KNOWN_S", -1.0)
        scan.kinds.clear()
        for _ in range(2):
            side.documents(coll.find())
    assert len(sent.named("listCollections")) == 3
    assert all("hint" not in each for each in sent.named("find")), "the server chooses the index"


@pytest.mark.parametrize("make", ["unsorted", "aggregate"])
def test_without_the_right_to_list_collections_nothing_is_changed(
    make: str, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    proxy.inject(Fail("listCollections", code=13, times=100))
    for _ in range(3):
        cursor, found = opened(side, coll, RESUMABLE[make][0])
        assert len(found + rest(side, cursor)) == COUNT
    assert len(sent.named("listCollections")) == 1
    (line,) = [each for each in caplog.messages if "permission for listCollections" in each]
    assert "without a sort are not resumed" in line
    assert not any("sort" in each for each in sent.named("find"))


@pytest.mark.parametrize("make", ["unsorted", "aggregate"])
@pytest.mark.parametrize("fault", ["cut", "code 91", "overload"])
def test_a_kind_that_cannot_be_read_delays_nothing(
    fault: str, make: str, side: Side, proxy: ReplicaSet, coll: Any
) -> None:
    if fault == "cut":
        proxy.inject(CutBefore("listCollections", times=1000))
    elif fault == "code 91":
        proxy.inject(Fail("listCollections", code=91, times=1000))
    else:
        proxy.inject(Overload("listCollections", times=1000))
    cursor, found = opened(side, coll, RESUMABLE[make][0])
    assert len(found + rest(side, cursor)) == COUNT


@pytest.mark.parametrize("make", ["unsorted", "aggregate"])
def test_a_sort_that_the_server_refuses_is_left_out(
    make: str, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    name = "find" if make == "unsorted" else "aggregate"
    proxy.inject(Fail(name, code=292, text="Sort exceeded memory limit"))
    cursor, found = opened(side, coll, RESUMABLE[make][0])
    assert len(found + rest(side, cursor)) == COUNT
    changed, unchanged = shape(sent, name)
    with override(resumable=False):
        side.documents(RESUMABLE[make][0](side, coll))
    assert unchanged == shape(sent, name)[-1] != changed
    # An error that has nothing to do with it is raised after one more command at most.
    with override(resumable=IF_POSSIBLE), pytest.raises(OperationFailure):
        side.documents(coll.find({"$no such operator": 1}))


def test_a_hedged_find_that_is_not_resumed_stays_hedged(
    side: Side, replica_set: ReplicaSet, database: str, order: list[bytes], instrument: Instrument,
    sent: SentCommands,
) -> None:  # fmt: skip
    instrument()
    coll = nearest(side, replica_set, database, event_listeners=[sent], localThresholdMS=60_000)
    with override(hedge=PLENTY_MS):
        for _ in range(READS_PER_HEDGE * 2):
            side.do(coll.find_one)
    replica_set.inject(Slow(0.3))
    with override(resumable=IF_POSSIBLE, hedge=5):
        for count, call in (
            (1, lambda: side.do(coll.aggregate, [{"$match": {}}, {"$sort": {"_id": 1}}])),
            (2, lambda: side.do(coll.aggregate, [{"$match": {}}, {"$sort": {"n": 1}}])),
        ):
            before = len(sent.named("aggregate"))
            call()
            assert len(sent.named("aggregate")) - before == count
    assert order


@pytest.mark.parametrize("lost", ["cut", "CursorNotFound"])
def test_the_error_of_a_lost_cursor_names_the_option_or_why_it_had_no_effect(
    lost: str, side: Side, proxy: ReplicaSet, coll: Any
) -> None:
    fault = FAULTS["cut before" if lost == "cut" else lost]
    makes: dict[str, Open] = {
        "find": lambda _, coll: coll.find(sort={"n": 1}, batch_size=BATCH),
        "aggregate": lambda side, coll: side.do(
            coll.aggregate, [{"$match": {}}, {"$sort": {"n": 1}}], batchSize=BATCH
        ),
    }
    option = r'override\(resumable="if_possible"\) does that .* a find that has no sort'
    for name, make in makes.items():
        why = "It was not resumed, because .* sorted by _id" if name == "find" else option
        for wanted, named in ((None, option), (IF_POSSIBLE, why)):
            cursor, _ = opened(side, coll, make, wanted)
            proxy.inject(fault())
            with pytest.raises((AutoReconnect, CursorNotFound), match=named):
                side.documents(cursor)


def test_the_limit_of_the_application_is_kept(side: Side, proxy: ReplicaSet, coll: Any) -> None:
    """It covers all batches together. The library's own deadline replaces it, as in pymongo."""
    makes: list[Open] = [
        lambda _, coll: coll.find({}, batch_size=BATCH, max_time_ms=5000),
        lambda side, coll: side.do(
            coll.aggregate, [{"$match": {}}], batchSize=BATCH, maxTimeMS=5000
        ),
    ]
    for make in makes:
        cursor, _ = opened(side, coll, make)
        proxy.inject(struck := Fail("getMore", code=50))
        with pytest.raises(ExecutionTimeout):
            side.documents(cursor)
        assert struck.injected == 1


@pytest.mark.parametrize("make", ["unsorted", "aggregate"])
def test_a_limit_of_the_server_is_not_tried_twice_for_the_same_batch(
    make: str, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    name = "find" if make == "unsorted" else "aggregate"
    proxy.inject(Fail(name, code=50, times=9))
    with override(resumable=IF_POSSIBLE), pytest.raises(ExecutionTimeout):
        side.documents(RESUMABLE[make][0](side, coll))
    assert len(sent.named(name)) == 1
    proxy.clear()
    cursor, _ = opened(side, coll, RESUMABLE[make][0])
    proxy.inject(Fail("getMore", code=50))
    proxy.inject(Fail(name, code=50, times=9))
    with pytest.raises(ExecutionTimeout):
        side.documents(cursor)
    assert len(sent.named(name)) == 3


def test_the_deadline_ends_it(side: Side, proxy: ReplicaSet, coll: Any) -> None:
    cursor, _ = opened(side, coll, RESUMABLE["aggregate"][0])
    proxy.inject(CutBefore("getMore"))
    proxy.inject(CutBefore("aggregate", times=1000))
    with override(timeout_ms=300), pytest.raises(OperationTimeoutError):
        side.documents(cursor)


def test_each_resumption_of_an_aggregate_is_a_retry(
    side: Side, proxy: ReplicaSet, coll: Any, telemetry: Telemetry
) -> None:
    cursor, _ = opened(side, coll, RESUMABLE["aggregate"][0])
    proxy.inject(Fail("getMore", code=50))
    rest(side, cursor)
    (event,) = telemetry.decisions.events
    assert (event.reason.value, event.attempt) == ("cursor_lost", 1)
    span = telemetry.operations(f"getMore {coll.full_name}")[0]
    assert [each.name for each in span.events] == ["retry.scheduled"]
    assert {each.name for each in telemetry.commands_of(span)} == {
        "getMore", "aggregate", "listCollections",
    }  # fmt: skip
    assert telemetry.shows_reason("cursor_lost")


def test_batches_that_were_read_while_the_library_was_off_are_not_read_again(
    side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    for make in ("unsorted", "aggregate"):
        cursor, found = opened(side, coll, RESUMABLE[make][0])
        with set_active(False):
            found += [side.do(cursor.next) for _ in range(BATCH)]
        assert keys(found) == order[: 2 * BATCH]
        proxy.inject(CutBefore("getMore"))
        with pytest.raises(AutoReconnect):
            side.documents(cursor)


@pytest.mark.parametrize("kind", ["replica set", "cluster"])
def test_another_member_or_router_continues_an_aggregate(
    kind: str, side: Side, replica_set: ReplicaSet, cluster: ShardedCluster, database: str,
    order: list[bytes], instrument: Instrument,
) -> None:  # fmt: skip
    deployment: Any = replica_set if kind == "replica set" else cluster
    instrument()
    coll = nearest(side, deployment, database)
    cursor, found = opened(side, coll, RESUMABLE["aggregate"][0])
    before = lose_server_of(side, deployment, coll, cursor)
    found += [side.do(cursor.next) for _ in range(BATCH)]
    assert cursor.address != before
    assert keys(found + rest(side, cursor)) == order


@pytest.mark.parametrize("make", ["unsorted", "aggregate"])
def test_a_new_primary_continues(
    make: str, side: Side, replica_set: ReplicaSet, database: str, order: list[bytes],
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    coll = side.client(replica_set.uri)[database].coll
    cursor, found = opened(side, coll, RESUMABLE[make][0])
    struck = replica_set.inject(Election(0.3), on="primary")
    assert keys(found + rest(side, cursor)) == order
    if side.runner is None:
        struck.result(PLENTY_MS / 1000)


def test_another_collection_of_that_name_ends_an_aggregate(
    side: Side, proxy: ReplicaSet, coll: Any, control: Any, database: str
) -> None:
    cursor, _ = opened(side, coll, RESUMABLE["aggregate"][0])
    with set_active(False):
        control[database].coll.drop()
        control[database].coll.insert_many([{"_id": n} for n in range(COUNT)])
    proxy.inject(CutBefore("getMore"))
    with pytest.raises(OperationFailure, match="replaced") as caught:
        side.do(cursor.next)
    assert caught.value.code == 175


def test_true_refuses_as_before_and_leaves_other_aggregates_alone(
    side: Side, coll: Any, sent: SentCommands
) -> None:
    group = [{"$match": {}}, {"$group": {"_id": "$n"}}]
    with override(resumable=True):
        with pytest.raises(ConfigurationError, match="sorted by _id or not sorted"):
            side.documents(coll.find(sort={"n": 1}))
        assert len(side.documents(side.do(coll.aggregate, group))) == COUNT
        side.documents(coll.find())
    assert sent.named("aggregate")[0]["pipeline"] == group
    (find,) = sent.named("find")
    assert find["hint"] == {"_id": 1}


@pytest.mark.parametrize("what", ["driver.finds.read", "driver.finds.retrieved"])
def test_a_bug_of_the_library_runs_it_unchanged(
    what: str, side: Side, coll: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(f"pymongo_resilience_instrumentation.{what}", fail)
    for make in ("unsorted", "aggregate"):
        with override(resumable=IF_POSSIBLE):
            assert len(side.documents(RESUMABLE[make][0](side, coll))) == COUNT
    assert "internal error in pymongo-resilience" in caplog.text
