"""The benchmark of resumable finds: its bars, its server, and with fewer documents all of it.

How many commands that takes is judged by the whole run alone: see docs/resumable-finds.md.
"""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed import processes
from support.resumable_finds import insert, keys

from pymongo_resilience.testbed import EmbeddedServer

BENCH = Path(__file__).parent.parent / "bench"
EXPECTED = [b"%d" % each for each in range(1000)]
COUNT = 300


@pytest.mark.thorough("thousands of documents are read, a second time with writers beside")
@pytest.mark.parametrize("side", ["sync", "async"])
def test_random_faults_lose_and_double_nothing(side: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "resumable.py", "--quick", "--side", side],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("0 missing, 0 doubled, in order" in line for line in lines)
    assert all("20 faults" in line and "20 resumptions" in line for line in lines)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scan that keeps its bars: ten batches, three faults, three commands more for each."""
    monkeypatch.syspath_prepend(str(BENCH))
    bench, rng = importlib.import_module("resumable"), random.Random(1)  # noqa: S311 - no secret
    run = bench.Run(None, rng, EXPECTED, faults=3, most_more=bench.MORE)
    run.found[:] = EXPECTED
    run.struck["elections"], run.commands.sent = 3, 19
    assert run.verdict()[0]
    return run


@pytest.mark.parametrize(
    "fault", ["missing", "doubled", "out of order", "too many commands", "a fault met nothing"]
)
def test_a_missed_bar_fails(fault: str, run: Any) -> None:
    if fault == "missing":
        run.found.remove(EXPECTED[7])
    elif fault == "doubled":
        run.found.append(b"another one's")
        assert run.verdict()[0]
        run.found.append(b"another one's")
    elif fault == "out of order":
        run.found[1:3] = run.found[2:0:-1]
    elif fault == "too many commands":
        run.commands.sent += 1
    else:
        run.struck["elections"] -= 1
        run.commands.sent -= 3
    assert not run.verdict()[0]


def test_its_server_walks_the_index_as_the_test_beds_sorts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "PROGRAM", BENCH / "index_server.py")
    by_index: dict[str, Any] = {"hint": {"_id": 1}, "batch_size": 100}
    with EmbeddedServer() as server, pymongo.MongoClient(server.uri) as client:
        coll = client.bench.coll
        client.bench.before.insert_one({})
        client.bench.d.insert_one({})
        order = insert(client, "bench", COUNT)
        documents = list(coll.find(sort={"_id": 1}))
        assert keys(coll.find(**by_index)) == order
        assert keys(coll.find(sort={"_id": -1}, **by_index)) == order[::-1]
        for at in range(0, COUNT, 7):
            last = ["$_id", {"$literal": documents[at]["_id"]}]
            assert keys(coll.find({"$expr": {"$gt": last}}, **by_index)) == order[at + 1 :]
            before = coll.find({"$expr": {"$lt": last}}, sort={"_id": -1}, **by_index)
            assert keys(before) == order[:at][::-1]
        some = [each["_id"] for each in documents[::7]]
        assert coll.delete_many({"_id": {"$in": some}}).deleted_count == len(some)
        cursor = coll.find(**by_index)
        cursor.next()
        gone = documents[-2]
        coll.delete_one({"_id": gone["_id"]})
        assert gone not in cursor.to_list(), "it is no snapshot"
