"""Finds that go on after a batch that failed, with each document once and in order."""

from __future__ import annotations

import copy
import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

import bson
import pymongo
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo_resilience_instrumentation.features.hedged_reads.hedge_budget import READS_PER_HEDGE
from support.clients import SentCommands, Side, wait_until
from support.cursor_cleanup import is_open, run_background
from support.resumable_finds import keys, of_raw
from support.scans import (
    BATCH,
    COUNT,
    FAULTS,
    PLENTY_MS,
    SERVER_IS_GONE_S,
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
from pymongo_resilience import ConfigurationError, OperationTimeoutError, Policy, bind, override
from pymongo_resilience.testbed import (
    CutAfter,
    CutBefore,
    Election,
    Fail,
    NotPrimary,
    ReplicaSet,
    Restart,
    ShardedCluster,
    Slow,
)
from pymongo_resilience.testing import set_active

__all__ = ["client", "coll", "order", "telemetry"]

pytestmark = pytest.mark.oldest
OTHERS = pytest.mark.thorough("each order is among the others")
SORTS = {"unsorted": None, "ascending": {"_id": 1}, "descending": {"_id": -1}}


def opened(side: Side, coll: Any, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
    """A resumable cursor, and the documents of its first batch."""
    with override(resumable=True):
        cursor = coll.find(*args, **{"batch_size": BATCH, **kwargs})
    return cursor, [side.do(cursor.next) for _ in range(BATCH)]


def scan(side: Side, proxy: ReplicaSet, coll: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """All documents of a find whose second batch is cut."""
    cursor, found = opened(side, coll, *args, **kwargs)
    proxy.inject(CutBefore("getMore"))
    return found + rest(side, cursor)


def is_not_resumed(side: Side, proxy: ReplicaSet, cursor: Any) -> None:
    proxy.inject(CutBefore("getMore"))
    with pytest.raises(AutoReconnect):
        side.documents(cursor)


def first_and_resumed(sent: SentCommands) -> tuple[Any, Any]:
    first, resumed = sent.named("find")
    return first, resumed


REPLACEMENTS: dict[str, Callable[[Any], object]] = {
    "dropped": lambda coll: coll.drop(),
    "renamed": lambda coll: coll.rename(f"{coll.name}_old"),
    "dropped and made anew": lambda coll: (
        coll.drop(),
        coll.insert_many([{"_id": n} for n in range(COUNT)]),
    ),
    "replaced": lambda coll: (
        coll.database.other.insert_many([{"_id": f"new {n}"} for n in range(COUNT)]),
        coll.database.other.rename(coll.name, dropTarget=True),
    ),
}
TIMEOUTS = pytest.mark.parametrize("timeout_ms", [None, PLENTY_MS], ids=["bare", "timeout"])


@TIMEOUTS
@pytest.mark.parametrize(
    ("how", "fault"),
    [*zip(REPLACEMENTS, ["cut before", "CursorNotFound", "not primary", "cut after"], strict=True)],
)
def test_another_collection_of_that_name_ends_the_scan(
    how: str, fault: str, timeout_ms: int | None, side: Side, proxy: ReplicaSet, coll: Any,
    control: Any, database: str, order: list[bytes],
) -> None:  # fmt: skip
    cursor, found = opened(side, coll)
    with set_active(False):
        REPLACEMENTS[how](control[database].coll)
    proxy.inject(FAULTS[fault]())
    with override(timeout_ms=timeout_ms), pytest.raises(OperationFailure, match="replaced") as over:
        side.do(cursor.next)
    assert over.value.code == 175
    assert keys(found) == order[:BATCH]


def test_another_collection_behind_a_view_ends_the_scan(
    side: Side, proxy: ReplicaSet, client: Any, control: Any, database: str, order: list[bytes]
) -> None:
    with set_active(False):
        control[database].create_collection("view", viewOn="coll")
        control[database].create_collection("view2", viewOn="view")
    cursor, found = opened(side, client[database].view2)
    proxy.inject(CutBefore("getMore"))
    found += [side.do(cursor.next) for _ in range(BATCH)]
    assert keys(found) == order[: 2 * BATCH]
    with set_active(False):
        REPLACEMENTS["replaced"](control[database].coll)
    proxy.inject(CutBefore("getMore"))
    with pytest.raises(OperationFailure, match="replaced"):
        side.do(cursor.next)


@TIMEOUTS
@pytest.mark.parametrize("code", [175, 237, 11601])
def test_a_scan_that_is_ended_on_purpose_has_that_error(
    code: int, timeout_ms: int | None, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    """Also where the find that goes on is what is ended."""
    for before in ([], [CutBefore("getMore")]):
        cursor, _ = opened(side, coll)
        sent.started_events.clear()
        for fault in before:
            proxy.inject(fault)
        proxy.inject(Fail("find" if before else "getMore", code=code))
        with override(timeout_ms=timeout_ms), pytest.raises(OperationFailure) as over:
            side.documents(cursor)
        assert over.value.code == code
        assert len(sent.named("getMore")) == 1
        proxy.clear(strict=True)


def test_the_collection_is_asked_for_once_and_with_each_resumption(
    side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes], sent: SentCommands
) -> None:
    with override(resumable=True):
        side.documents(coll.find(batch_size=COUNT + 1))
    assert not sent.named("listCollections")
    cursor, found = opened(side, coll)
    for _ in range(2):
        proxy.inject(CutBefore("getMore"))
        found += [side.do(cursor.next) for _ in range(BATCH)]
    assert keys(found + rest(side, cursor)) == order
    assert len(sent.named("listCollections")) == 3


def test_a_scan_of_a_collection_that_may_not_be_asked_for_is_not_resumed(
    side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes], sent: SentCommands,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    proxy.inject(Fail("listCollections", code=13))
    cursor, found = opened(side, coll)
    found += [side.do(cursor.next) for _ in range(2 * BATCH)]
    assert keys(found) == order[: 3 * BATCH]
    assert "cannot be resumed: listCollections failed" in caplog.text
    # Nor is it asked for in vain behind each batch.
    assert len(sent.named("listCollections")) == 1
    is_not_resumed(side, proxy, cursor)


PASSING: dict[str, Callable[[int], Any]] = {
    "cut": lambda times: CutBefore("listCollections", times),
    "reply lost": lambda times: CutAfter("listCollections", times),
    "code 91": lambda times: Fail("listCollections", times, code=91),
    "code 6": lambda times: Fail("listCollections", times, code=6),
    "not primary": lambda times: NotPrimary("listCollections", times),
}


@TIMEOUTS
@pytest.mark.parametrize("fault", PASSING)
def test_a_collection_that_could_not_be_asked_for_once_is_asked_for_again(
    fault: str, timeout_ms: int | None, side: Side, proxy: ReplicaSet, coll: Any,
    order: list[bytes],
) -> None:  # fmt: skip
    proxy.inject(PASSING[fault](1))
    with override(timeout_ms=timeout_ms):
        cursor, found = opened(side, coll)
    proxy.clear(strict=True)
    proxy.inject(CutBefore("getMore"))
    assert keys(found + rest(side, cursor)) == order


@pytest.mark.parametrize("fault", ["cut", "code 91"])
def test_or_behind_a_later_batch(
    fault: str, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    proxy.inject(PASSING[fault](10_000))
    cursor, found = opened(side, coll)
    found += [side.do(cursor.next) for _ in range(BATCH)]
    proxy.clear()
    found += [side.do(cursor.next) for _ in range(BATCH)]
    proxy.inject(CutBefore("getMore"))
    assert keys(found + rest(side, cursor)) == order
    warned = [each for each in caplog.records if "cannot be resumed for now" in each.getMessage()]
    assert len(warned) == 1


def test_a_resumption_that_fails_is_repeated_as_often_as_fits(
    side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    cursor, found = opened(side, coll)
    proxy.inject(CutBefore("getMore"))
    proxy.inject(CutBefore("find", times=3))
    proxy.inject(CutBefore("listCollections"))
    assert keys(found + rest(side, cursor)) == order


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"_id": {"$gte": 100, "$lt": 150}}, range(100, 150)),
        ({"_id": {"$gte": 100, "$lte": 150}}, range(100, 151)),
        ({"$and": [{"_id": {"$gt": 99}}, {"n": 1}]}, range(100, 200)),
        ({"_id": {"$in": [*range(0, 200, 4)]}}, range(0, 200, 4)),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_a_range_is_resumed_within_it(
    given: Any, expected: range, backward: bool, side: Side, proxy: ReplicaSet, coll: Any
) -> None:
    coll = coll.database.other
    side.do(coll.insert_many, [{"_id": each, "n": 1} for each in range(200)])
    found = scan(side, proxy, coll, given, sort={"_id": -1 if backward else 1})
    assert [each["_id"] for each in found] == [*expected][:: -1 if backward else 1]


@pytest.mark.parametrize("level", [None, "majority", "available"])
def test_a_member_that_lags_is_waited_for(
    level: str | None, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    """It would skip what was there before the scan began."""
    coll = coll.with_options(read_concern=pymongo.read_concern.ReadConcern(level))
    scan(side, proxy, coll)
    first, resumed = first_and_resumed(sent)
    concern = dict(resumed.get("readConcern", {}))
    assert ("afterClusterTime" in concern) == (level != "available")
    concern.pop("afterClusterTime", None)
    assert concern == first.get("readConcern", {})


def test_an_index_that_cannot_be_hinted_at_is_refused(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    """As on the oplog and on time series; a bad query has its own error."""
    proxy.inject(
        Fail("find", code=2, text="hint provided does not correspond to an existing index")
    )
    assert "no index on _id" in refused(side, coll)
    proxy.inject(Fail("find", code=2, text="unknown top level operator: $bad"))
    with override(resumable=True), pytest.raises(OperationFailure, match=r"^unknown top level"):
        side.do(coll.find({"$bad": 1}).to_list)
    assert len(sent.named("find")) == 2


def test_what_is_skipped_is_skipped_once(
    side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    assert keys(scan(side, proxy, coll, skip=5, limit=30)) == order[5:35]
    if side.runner is None:
        with override(resumable=True):
            assert keys(coll.find()[5:7]) == order[5:7]


@pytest.mark.parametrize(
    ("fault", "sort"),
    [
        pytest.param(fault, sort, marks=[] if sort == some else OTHERS)
        for fault, some in zip(FAULTS, itertools.cycle(SORTS), strict=False)
        for sort in SORTS
    ],
)
def test_each_document_comes_once_and_in_order(
    fault: str, sort: str, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    cursor, found = opened(side, coll, {}, sort=SORTS[sort])
    proxy.inject(FAULTS[fault]())
    found += rest(side, cursor)
    assert keys(found) == (order[::-1] if sort == "descending" else order)
    proxy.clear(strict=True)


@pytest.mark.parametrize("sort", SORTS)
def test_after_each_type_of_id(
    sort: str, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    """A batch ends behind each document, and each getMore fails once."""
    with override(resumable=True):
        cursor = coll.find({}, sort=SORTS[sort], batch_size=2)
    found = [side.do(cursor.next), side.do(cursor.next)]
    while cursor.alive:
        proxy.inject(Fail("getMore", code=43))
        with override(timeout_ms=PLENTY_MS):
            found += side.do(cursor.to_list, 2)
    assert keys(found) == (order[::-1] if sort == "descending" else order)


def test_raw_batches(side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]) -> None:
    with override(resumable=True):
        cursor = coll.find_raw_batches(batch_size=BATCH, limit=3 * BATCH)
    batches = [side.do(cursor.next)]
    for _ in range(2):
        proxy.inject(CutAfter("getMore"))
        batches.append(side.do(cursor.next))
    batches += rest(side, cursor)
    assert keys(of_raw(batches)) == order[: 3 * BATCH]


@pytest.mark.parametrize("kind", ["dicts", "raw documents", "raw batches"])
def test_id_is_taken_off_where_it_is_not_wanted(
    kind: str, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    if kind == "raw documents":
        options = bson.CodecOptions(document_class=RawBSONDocument)
        coll = coll.with_options(codec_options=options)
    find = coll.find_raw_batches if kind == "raw batches" else coll.find
    with override(resumable=True):
        cursor = find({}, {"_id": 0}, batch_size=BATCH)
    found = [side.do(cursor.next)]
    proxy.inject(CutBefore("getMore"))
    found += rest(side, cursor)
    documents = list(of_raw(found)) if kind == "raw batches" else [dict(each) for each in found]
    assert len(documents) == len(order)
    assert all(each.keys() == {"n"} for each in documents)
    assert len({each["n"] for each in documents}) == len(order)


@pytest.mark.parametrize("again", [False, True])
def test_what_was_read_without_the_library_is_not_resumed(
    again: bool, side: Side, proxy: ReplicaSet, coll: Any
) -> None:
    """From where it was left, documents would come twice."""
    cursor, _ = opened(side, coll)
    pymongo_resilience.uninstrument()
    if again:
        side.do(cursor.rewind)
    side.do(cursor.to_list, BATCH)
    pymongo_resilience.instrument()
    is_not_resumed(side, proxy, cursor)


@pytest.mark.parametrize("limit", [BATCH + 1, 2 * BATCH, 3 * BATCH, COUNT, 2 * COUNT])
def test_a_limit_counts_what_came_before(
    limit: int, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes], sent: SentCommands
) -> None:
    assert keys(scan(side, proxy, coll, limit=limit)) == order[:limit]
    _, resumed = first_and_resumed(sent)
    assert resumed["limit"] == limit - BATCH


@pytest.mark.needs_server("5.0")  # let
def test_what_the_find_was_given_is_kept(
    side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    coll = coll.with_options(read_preference=pymongo.ReadPreference.PRIMARY_PREFERRED)
    cursor, _ = opened(
        side,
        coll,
        {"n": {"$gte": 0}},
        {"n": 1},
        comment="kept",
        max_time_ms=5000,
        collation={"locale": "simple"},
        allow_disk_use=True,
        let={"x": 1},
    )
    proxy.inject(CutBefore("getMore"))
    with override(timeout_ms=None):
        side.documents(cursor)
    first, resumed = first_and_resumed(sent)
    for name in (
        "projection", "batchSize", "comment", "maxTimeMS", "collation", "allowDiskUse", "let",
        "sort", "hint", "$readPreference",
    ):  # fmt: skip
        assert resumed.get(name) == first.get(name)
    assert first["filter"] in resumed["filter"]["$and"]
    assert first["comment"] == "kept"
    assert first["maxTimeMS"] == 5000


def refused(side: Side, coll: Any, **given: Any) -> str:
    """The error's text, by which the same find can be sent."""
    said = rf"find on {coll.full_name} with resumable=True .* \(.*override\(resumable=False\)"
    with override(resumable=True), pytest.raises(ConfigurationError, match=said) as raised:
        side.do(coll.find(**given).to_list)
    return str(raised.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"sort": {"n": 1}}, "sorted by _id"),
        ({"cursor_type": pymongo.CursorType.TAILABLE}, "tailable"),
        ({"cursor_type": pymongo.CursorType.TAILABLE_AWAIT}, "tailable"),
        ({"cursor_type": pymongo.CursorType.EXHAUST}, "exhaust"),
        ({"hint": [("$natural", 1)]}, "natural"),
        ({"return_key": True}, "return_key"),
        ({"filter": {"at": {"$near": [1, 1]}}}, "geo"),
        ({"collation": {"locale": "en", "strength": 2}}, "collation"),
        ({"hint": "n_1"}, "hint"),
        ({"projection": {"_id": "$n"}}, "projection"),
    ],
)
def test_what_cannot_be_resumed_is_refused_before_it_is_sent(
    given: dict[str, Any], named: str, side: Side, coll: Any, sent: SentCommands
) -> None:
    assert named in refused(side, coll, **given)
    assert not sent.named("find")


@pytest.mark.parametrize("kind", ["transaction", "snapshot", "snapshot read concern"])
def test_what_reads_at_one_time_is_refused(
    kind: str, side: Side, client: Any, coll: Any, sent: SentCommands
) -> None:
    session = None
    if kind == "snapshot read concern":
        coll = coll.with_options(read_concern=pymongo.read_concern.ReadConcern("snapshot"))
    else:
        session = client.start_session(snapshot=kind == "snapshot")
    if kind == "transaction":
        side.do(session.start_transaction)
    assert kind.partition(" ")[0] in refused(side, coll, session=session)
    assert not sent.named("find")
    if session is not None:
        side.do(session.end_session)


@pytest.mark.parametrize("how", ["override", "binding", "rule", "iterated in a block"])
def test_wherever_it_is_set(
    how: str, side: Side, proxy: ReplicaSet, database: str, order: list[bytes],
    instrument: Instrument,
) -> None:  # fmt: skip
    policy = Policy(resumable=True)
    instrument(policies={f"{database}.*": policy} if how == "rule" else None)
    coll = side.client(proxy.uri)[database].coll
    if how == "binding":
        coll = bind(coll, policy)
    with override(resumable=True if how == "override" else None):
        cursor = coll.find(batch_size=BATCH)
    with override(resumable=True if how == "iterated in a block" else None):
        found = [side.do(cursor.next)]
    proxy.inject(CutBefore("getMore"))
    assert keys(found + side.documents(cursor)) == order


@pytest.mark.parametrize("how", ["nowhere", "taken back in a block"])
def test_without_it_nothing_is_changed(
    how: str, side: Side, proxy: ReplicaSet, coll: Any, sent: SentCommands
) -> None:
    if how != "nowhere":
        coll = bind(coll, Policy(resumable=True))
    with override(resumable=None if how == "nowhere" else False):
        cursor = coll.find(batch_size=BATCH)
        side.do(cursor.next)
        proxy.inject(CutBefore("getMore"))
        with pytest.raises(AutoReconnect):
            side.documents(cursor)
    (find,) = sent.named("find")
    assert not {"sort", "hint"} & find.keys()


def test_each_resumption_is_a_retry(
    side: Side, proxy: ReplicaSet, coll: Any, telemetry: Telemetry,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level("INFO", "pymongo_resilience.retry")
    cursor, _ = opened(side, coll)
    proxy.inject(Fail("getMore", code=43))
    rest(side, cursor)
    (event,) = telemetry.decisions.events
    assert (event.reason.value, event.attempt) == ("cursor_lost", 1)
    assert "cursor_lost" in caplog.text
    span = telemetry.operations(f"getMore {coll.full_name}")[0]
    assert [each.name for each in span.events] == ["retry.scheduled"]
    assert {each.name for each in telemetry.commands_of(span)} == {
        "getMore", "find", "listCollections",
    }  # fmt: skip
    ((attributes, point),) = telemetry.points("pymongo_resilience.retries")
    assert (attributes["pymongo_resilience.reason"], point.value) == ("cursor_lost", 1)


def test_without_a_deadline_a_batch_has_the_retries_of_any_read(
    side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    cursor, found = opened(side, coll)
    for _ in range(2):
        proxy.inject(CutBefore("getMore"))
        found += [side.do(cursor.next) for _ in range(BATCH)]
    assert keys(found) == order[: 3 * BATCH]
    proxy.inject(CutBefore("getMore"))
    proxy.inject(CutBefore("find", times=1_000))
    with pytest.raises(AutoReconnect, match="without a timeout"):
        side.do(cursor.next)


@pytest.mark.parametrize("block", ["override", "pymongo.timeout"])
def test_the_deadline_ends_it(block: str, side: Side, proxy: ReplicaSet, coll: Any) -> None:
    cursor, _ = opened(side, coll)
    proxy.inject(CutBefore("getMore"))
    proxy.inject(CutBefore("find", times=1000))
    around = override(timeout_ms=300) if block == "override" else pymongo.timeout(0.3)
    with around, pytest.raises(OperationTimeoutError):
        side.documents(cursor)


@pytest.mark.usefixtures("order")
def test_a_read_that_may_not_be_retried_is_not_resumed(
    side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    instrument()
    coll = side.client(proxy.uri, retryReads=False)[database].coll
    cursor, _ = opened(side, coll)
    proxy.inject(CutBefore("getMore"))
    with pytest.raises(AutoReconnect, match="retryReads is off"):
        side.documents(cursor)


@pytest.mark.parametrize(
    "fault", [Election(0.3), Restart(0.3, gap=0.2)], ids=["election", "restart"]
)
def test_a_new_primary_goes_on(
    fault: Any, side: Side, replica_set: ReplicaSet, database: str, order: list[bytes],
    instrument: Instrument,
) -> None:  # fmt: skip
    instrument()
    coll = side.client(replica_set.uri)[database].coll
    cursor, found = opened(side, coll)
    struck = replica_set.inject(copy.deepcopy(fault), on="primary")
    assert keys(found + rest(side, cursor)) == order
    if side.runner is None:
        struck.result(PLENTY_MS / 1000)


def test_a_resumable_find_is_not_hedged(
    side: Side, replica_set: ReplicaSet, database: str, order: list[bytes], instrument: Instrument,
    sent: SentCommands,
) -> None:  # fmt: skip
    """Two finds would each begin a scan. Beside it, what has no cursor is hedged."""
    instrument()
    coll = nearest(side, replica_set, database, event_listeners=[sent], localThresholdMS=60_000)
    with override(hedge=PLENTY_MS):
        for _ in range(READS_PER_HEDGE):
            side.do(coll.find_one)
    saved = len(sent.named("find"))
    replica_set.inject(Slow(0.3))
    with override(resumable=True, hedge=5):
        cursor = coll.find(batch_size=BATCH)
        found = [side.do(cursor.next)]
        assert len(sent.named("find")) == saved + 1
        side.do(coll.find_one)
        assert len(sent.named("find")) == saved + 3
    replica_set.clear()
    assert keys(found + rest(side, cursor)) == order


@pytest.mark.parametrize("kind", ["replica set", "cluster"])
def test_another_member_or_router_goes_on_where_the_cursors_is_gone(
    kind: str, side: Side, replica_set: ReplicaSet, cluster: ShardedCluster, database: str,
    order: list[bytes], instrument: Instrument,
) -> None:  # fmt: skip
    """The driver knows that its server cannot be reached, and would wait for it."""
    deployment: Any = replica_set if kind == "replica set" else cluster
    instrument()
    coll = nearest(side, deployment, database)
    cursor, found = opened(side, coll)
    before = lose_server_of(side, deployment, coll, cursor)
    began = time.monotonic()
    assert keys(found + rest(side, cursor)) == order
    assert time.monotonic() - began < SERVER_IS_GONE_S / 2
    assert cursor.address != before


@pytest.mark.usefixtures("order")
def test_documents_without_an_id_are_not_resumed(
    side: Side, proxy: ReplicaSet, client: Any, control: Any, database: str
) -> None:
    with set_active(False):
        pipeline = [{"$project": {"_id": 0}}]
        control[database].create_collection("view", viewOn="coll", pipeline=pipeline)
    cursor, _ = opened(side, client[database].view)
    is_not_resumed(side, proxy, cursor)


def test_one_document_and_a_plan_need_no_cursor(
    side: Side, coll: Any, order: list[bytes], sent: SentCommands
) -> None:
    with override(resumable=True):
        assert side.do(coll.find_one, {"n": 1}, sort={"n": 1}, skip=0)["n"] == 1
        assert side.do(coll.find({"n": 1}).explain)
        if side.runner is None:
            cursor = coll.find(batch_size=BATCH)
            assert keys([cursor[7]])
            assert keys(cursor[:5]) == order[:5]
    assert "hint" not in sent.named("find")[0]


def test_rewound_and_cloned_it_is_resumable_from_the_beginning(
    side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes]
) -> None:
    cursor, _ = opened(side, coll)
    side.do(cursor.next)
    side.do(cursor.rewind)
    for again in (cursor.clone(), cursor):
        found = [side.do(again.next)]
        proxy.inject(CutBefore("getMore"))
        assert keys(found + rest(side, again)) == order


def test_close_ends_the_cursor_of_the_new_find(
    side: Side, proxy: ReplicaSet, coll: Any, control: Any, database: str
) -> None:
    cursor, _ = opened(side, coll)
    before = cursor.cursor_id
    proxy.inject(CutBefore("getMore"))
    side.do(cursor.next)
    now = cursor.cursor_id
    assert now not in (before, 0)
    side.do(cursor.close)
    assert not is_open(control, database, now)


@pytest.mark.parametrize("lost", [False, True])
def test_a_cursor_that_was_left_is_killed_unless_the_server_has_lost_it(
    lost: bool, side: Side, proxy: ReplicaSet, client: Any, coll: Any, sent: SentCommands
) -> None:
    cursor, _ = opened(side, coll)
    left = cursor.cursor_id
    proxy.inject(Fail("getMore", code=43) if lost else CutAfter("getMore"))
    side.do(cursor.next)

    def killed() -> list[int]:
        run_background(side, client)
        return [each for command in sent.named("killCursors") for each in command["cursors"]]

    if lost:
        side.documents(cursor)
        assert not killed()
    else:
        assert left in wait_until(killed)


def test_an_abandoned_cursor_is_killed(
    side: Side, proxy: ReplicaSet, client: Any, coll: Any, control: Any, database: str
) -> None:
    cursor, _ = opened(side, coll, {}, {"_id": 0})
    proxy.inject(CutBefore("getMore"))
    side.do(cursor.next)
    cursor_id = cursor.cursor_id
    del cursor
    gc.collect()

    def is_killed() -> bool:
        run_background(side, client)
        return not is_open(control, database, cursor_id)

    wait_until(is_killed)


def test_a_causal_session_goes_on(
    side: Side, proxy: ReplicaSet, client: Any, coll: Any, order: list[bytes], sent: SentCommands
) -> None:
    session = client.start_session(causal_consistency=True)
    assert keys(scan(side, proxy, coll, session=session)) == order
    first, resumed = first_and_resumed(sent)
    assert resumed["lsid"] == first["lsid"] == session.session_id
    assert "afterClusterTime" in resumed["readConcern"]
    side.do(session.end_session)


def test_a_cursor_that_is_read_in_a_transaction_is_not_resumed(
    side: Side, proxy: ReplicaSet, client: Any, coll: Any
) -> None:
    session = client.start_session()
    cursor, _ = opened(side, coll, session=session)
    side.do(session.start_transaction)
    proxy.inject(CutBefore("getMore"))
    with pytest.raises(AutoReconnect):
        side.do(cursor.next)
    side.do(session.abort_transaction)
    side.do(session.end_session)


def test_gridfs_reads_in_a_block(side: Side, client: Any, database: str) -> None:
    gridfs = pytest.importorskip("gridfs")
    bucket = gridfs.GridFSBucket if side.runner is None else gridfs.AsyncGridFSBucket
    files = bucket(client[database], chunk_size_bytes=10)
    with override(resumable=True):
        number = side.do(files.upload_from_stream, "file", b"x" * 95)
        stream = side.do(files.open_download_stream, number)
        assert side.do(stream.read) == b"x" * 95
        assert len(side.documents(files.find({}))) == 1


@pytest.mark.parametrize("what", ["driver.finds.batch_of", "driver.finds.last_id"])
def test_a_fault_of_ours_leaves_the_find_as_it_was(
    what: str, side: Side, proxy: ReplicaSet, coll: Any, order: list[bytes],
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    cursor, found = opened(side, coll)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(f"pymongo_resilience_instrumentation.{what}", fail)
    found += [side.do(cursor.next) for _ in range(BATCH)]
    assert keys(found) == order[: 2 * BATCH]
    is_not_resumed(side, proxy, cursor)
    assert "internal error in pymongo-resilience" in caplog.text


def test_writers_meanwhile(
    side: Side, proxy: ReplicaSet, coll: Any, control: Any, database: str, order: list[bytes]
) -> None:
    """What exists throughout comes once; the document that was delivered last is deleted, too."""
    cursor, found = opened(side, coll)
    for n in range(3):
        with set_active(False):
            control[database].coll.delete_one({"_id": found[-1]["_id"]})
            control[database].coll.insert_many(
                [{"_id": f"new {n}"}, {"_id": {"new": n}}, {"_id": -n - 0.125}]
            )
        proxy.inject(CutAfter("getMore"))
        found += [side.do(cursor.next) for _ in range(BATCH)]
    found += rest(side, cursor)
    once = keys(found)
    assert len(once) == len(set(once))
    assert [each for each in once if each in set(order)] == order
