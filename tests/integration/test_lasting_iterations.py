"""A timeout of the configuration ends no iteration that plain pymongo, beside it, goes on with."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import pytest
from gridfs import GridFSBucket
from gridfs.asynchronous import AsyncGridFSBucket
from support.clients import Side
from support.telemetry import Instrument
from support.wait_helpers import wait_for_server

from pymongo_resilience import OperationTimeoutError, Policy
from pymongo_resilience.testbed import Latency, Refuse, ReplicaSet
from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

TIMEOUT = 600
"""Milliseconds, for each command."""
PAUSE = 0.15
"""Seconds that each reply is held back: several replies take longer than the timeout."""
COUNT = 8
CHUNKS = 110
"""Of a file: more than a first batch has."""


def _iterate(side: Side, cursor: Any) -> list[Any]:
    if side.runner is None:
        return list(cursor)

    async def all_of() -> list[Any]:
        return [each async for each in cursor]

    return list(side.do(all_of))


class _SlowFile(io.BytesIO):
    def write(self, data: Any) -> int:
        time.sleep(PAUSE / 10)
        return super().write(data)


def _download(side: Side, db: Any) -> list[Any]:
    file = _SlowFile()
    side.do(_bucket(side, db).download_to_stream_by_name, "file", file)
    return [file.getvalue()]


def _upload(side: Side, db: Any) -> list[Any]:
    stream = _bucket(side, db).open_upload_stream("new", chunk_size_bytes=1)
    for _ in range(COUNT):
        side.do(stream.write, b"x")
        time.sleep(PAUSE)
    side.do(stream.close)
    return [stream.length]


def _bucket(side: Side, db: Any) -> Any:
    return (GridFSBucket if side.runner is None else AsyncGridFSBucket)(db, chunk_size_bytes=1)


ITERATIONS: dict[str, Callable[[Side, Any], list[Any]]] = {
    "to_list": lambda s, db: list(s.do(db.coll.find(batch_size=1).to_list)),
    "to_list of an aggregate": lambda s, db: list(
        s.do(s.do(db.coll.aggregate, [], batchSize=1).to_list)
    ),
    "for": lambda s, db: _iterate(s, db.coll.find(batch_size=1)),
    "for, an aggregate": lambda s, db: _iterate(s, s.do(db.coll.aggregate, [], batchSize=1)),
    "find_raw_batches": lambda s, db: list(
        s.do(db.coll.find_raw_batches({}, batch_size=1).to_list)
    ),
    "list_collections": lambda s, db: sorted(
        each["name"] for each in _iterate(s, s.do(db.list_collections, batchSize=1))
    ),
    "reading a file": _download,
    "writing a file": _upload,
}


@pytest.mark.parametrize("setup", ["process", "rule over the client's"])
@pytest.mark.parametrize("name", ITERATIONS)
def test_it_takes_longer_than_one_command_may(
    name: str, setup: str, side: Side, proxy: ReplicaSet, database: str, instrument: Instrument
) -> None:
    if name == "reading a file" and setup != "process":
        setup = "rule"  # the client's own timeoutMS is for the whole method
    rule = setup != "process"
    client = side.client(proxy.uri, **({"timeoutMS": TIMEOUT} if "client" in setup else {}))
    plain = side.client(proxy.uri)
    with set_active(False):
        side.do(plain[database].coll.insert_many, [{"_id": number} for number in range(COUNT)])
        side.do(_bucket(side, plain[database]).upload_from_stream, "file", b"x" * CHUNKS)
        for number in range(3):
            side.do(plain[database].create_collection, f"more{number}")
    policies = {f"{database}.*": Policy(timeout_ms=TIMEOUT)}
    instrument(**({"policies": policies} if rule else {"timeout_ms": TIMEOUT}))
    wait_for_server(side, client)
    proxy.inject(Latency(PAUSE))
    with set_active(False):
        expected = ITERATIONS[name](side, plain[database])
    began = time.monotonic()
    assert ITERATIONS[name](side, client[database]) == expected
    if name != "list_collections":  # the server may answer with all of them
        assert time.monotonic() - began > TIMEOUT / 1000


@pytest.mark.parametrize("timeout_ms", [None, TIMEOUT])
def test_a_change_stream_outlives_an_outage(
    timeout_ms: int | None, side: Side, database: str, instrument: Instrument
) -> None:
    """None is plain pymongo. The outage is longer than the timeout, and the stream goes on."""
    with ReplicaSet() as replica_set:
        if timeout_ms is not None:
            instrument(timeout_ms=timeout_ms)
        client = side.client(replica_set.uri)
        writer = side.client(replica_set.uri)
        coll = client[database].coll
        with set_active(False):
            side.do(writer[database].coll.insert_one, {"_id": 0})
            wait_for_server(side, client)
        stream = side.do(coll.watch, max_await_time_ms=50)
        with set_active(False):
            side.do(writer[database].coll.insert_one, {"_id": 1})
        assert side.do(stream.next)["documentKey"]["_id"] == 1
        replica_set.inject(Refuse(3 * TIMEOUT / 1000))
        began = time.monotonic()
        assert side.do(stream.try_next) is None
        assert time.monotonic() - began > TIMEOUT / 1000
        with set_active(False):
            side.do(writer[database].coll.insert_one, {"_id": 2})
        assert side.do(stream.next)["documentKey"]["_id"] == 2
        side.do(stream.close)


def test_a_change_stream_that_gave_up_goes_on_with_the_next_call(
    side: Side, database: str, instrument: Instrument
) -> None:
    with ReplicaSet() as replica_set:
        instrument(timeout_ms=TIMEOUT)
        client = side.client(replica_set.uri, serverSelectionTimeoutMS=TIMEOUT)
        with set_active(False):
            side.do(client[database].coll.insert_one, {"_id": 0})
        stream = side.do(client[database].coll.watch, max_await_time_ms=50)
        assert side.do(stream.try_next) is None
        replica_set.inject(Refuse(4 * TIMEOUT / 1000))
        with pytest.raises(OperationTimeoutError) as caught:
            side.do(stream.try_next)
        assert "call next() again" in str(caught.value)
        assert stream.alive
        replica_set.clear()
        with set_active(False):
            side.do(client[database].coll.insert_one, {"_id": 1})
        assert side.do(stream.next)["documentKey"]["_id"] == 1
        side.do(stream.close)
