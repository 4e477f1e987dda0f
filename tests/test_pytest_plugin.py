"""The pytest plugin, as a project uses it: suites that are run, and what becomes of their tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "testing"
MODULE = "pymongo_resilience_instrumentation.tools.pytest_plugin"
TIMEOUT = 60
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
NAIVE = """
import asyncio
from pymongo.errors import AutoReconnect

def place_order(orders, number):
    while True:
        try:
            return orders.insert_one({"number": number})
        except AutoReconnect:
            pass

async def place_order_async(orders, number):
    while True:
        try:
            return await orders.insert_one({"number": number})
        except AutoReconnect:
            pass

def pay(orders, number, cents):
    orders.update_one({"number": number}, {"$inc": {"cents": cents}})

async def pay_async(orders, number, cents):
    await orders.update_one({"number": number}, {"$inc": {"cents": cents}})
"""


def run(folder: Path, *arguments: str) -> tuple[dict[str, str], str]:
    """What became of each test, and all that was printed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-vv", "-rA", "-p", "no:cacheprovider", "-p", MODULE),
            *("--strict-markers", "--rootdir", str(folder), *arguments),
        ],
        cwd=folder,
        env=ENVIRONMENT | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    printed = done.stdout + done.stderr
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\S+)", printed, re.MULTILINE)
    return {name: outcome for outcome, name in outcomes}, printed


def test_the_examples_pass(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    outcomes, printed = run(tmp_path)
    assert set(outcomes.values()) == {"PASSED"}, printed
    assert "6 passed" in printed


def test_the_examples_catch_a_double_write(tmp_path: Path) -> None:
    """Of an application with a retry loop of its own, and without the library."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "shop.py").write_text(NAIVE)
    for name in ("test_shop.py", "test_shop_async.py"):
        file = tmp_path / name
        text = file.read_text()
        file.write_text(re.sub(r"^ +(?:un)?instrument\(.*\n", "", text, flags=re.MULTILINE))
    _, printed = run(tmp_path, "-k", "placed_once")
    assert "2 failed" in printed, printed  # sync and async
    assert printed.count("AssertionError: assert 2 == 1") >= 2


SUITE = '''
import sys
import pytest
from pymongo import MongoClient
from pymongo_resilience.testbed import (
    CutAfter, CutBefore, Latency, ReplicaSet, ShardedCluster,
)
from pymongo_resilience_instrumentation.tools.testbed.drills import drill
from pymongo_resilience_instrumentation.tools.testbed.fault_catalog import reset

seen = []


@pytest.fixture
def coll(mongo_faults, mongo_database):
    with MongoClient(mongo_faults.uri) as client:
        client[mongo_database].coll.insert_one({})
        yield client[mongo_database].coll


def test_injected_and_struck(coll, mongo_faults):
    mongo_faults.inject(CutAfter("insert"))
    coll.insert_one({})
    assert coll.count_documents({}) == 2


def test_injected_and_never_struck(coll, mongo_faults):
    mongo_faults.inject(CutAfter("delete"))


@pytest.mark.mongo_faults(CutBefore("delete"))
def test_marked_and_never_struck(coll):
    pass


@pytest.mark.mongo_faults(CutBefore("insert"))
@pytest.mark.parametrize("number", [1, 2])
def test_marked_and_struck(coll, number):
    """The fixture's insert was before."""
    coll.insert_one({})
    assert coll.count_documents({}) == 2


@pytest.mark.mongo_faults(CutBefore("delete"))
def test_failed_by_itself(coll):
    assert coll is None, "its own error"


def test_afterwards_all_is_clear(coll):
    coll.delete_one({})


@pytest.mark.mongo_faults(CutBefore("ping", times=2), on="secondary")
def test_on_some_members(mongo_replica_set):
    with MongoClient(mongo_replica_set.uri) as client:
        client.admin.command("ping")


FAULTS = [CutBefore("insert"), CutAfter("update"), Latency(0.001)]
SEEDS = [pytest.param(n, marks=pytest.mark.mongo_faults(*FAULTS, seed=n)) for n in (7, 7, 8)]


@pytest.mark.parametrize("seed", SEEDS)
def test_order(coll, seed):
    coll.insert_one({})
    coll.update_one({}, {"$set": {"a": 1}})


@pytest.mark.mongo_faults(reset, seed=7)
def test_recipe(coll):
    coll.insert_one({})


@pytest.mark.mongo_faults("rolling-maintenance")
def test_drill(coll, mongo_faults):
    mongo_faults.play(drill("overload-pulse", mongo_faults))
    coll.insert_one({})


def test_a_database_of_its_own(mongo_database, mongo_server):
    with MongoClient(mongo_server.uri) as client:
        names = [name for name in client.list_database_names() if name.startswith("test_")]
    assert names == []


def test_one_server(mongo_server, mongo_replica_set, mongo_sharded_cluster, mongo_faults):
    assert isinstance(mongo_replica_set, ReplicaSet)
    assert mongo_faults is mongo_sharded_cluster
    assert isinstance(mongo_faults, ShardedCluster)
    for each in (mongo_replica_set, mongo_sharded_cluster):
        assert each.server_address == mongo_server.address


@pytest.mark.parametrize("number", [1, 2])
def test_scope(mongo_replica_set, number):
    seen.append(mongo_replica_set)
    assert len(set(map(id, seen))) == 1
'''
FAILING = {
    "test_injected_and_never_struck",
    "test_marked_and_never_struck",
    "test_failed_by_itself",
    "test_on_some_members",
}


def test_faults_that_never_strike_fail_their_test(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    outcomes, printed = run(tmp_path, "--mongo-scope", "session")
    failed = {name for name, outcome in outcomes.items() if outcome != "PASSED"}
    assert failed == FAILING, printed
    assert set(outcomes.values()) == {"PASSED", "FAILED"}
    assert len(outcomes) == 17
    assert "these faults never acted: CutAfter('delete')" in printed
    assert "these faults never acted: CutBefore('delete')" in printed
    assert "its own error" in printed
    # The same seed, the same order; another seed, another one.
    seven, again = re.findall(r"^(.*Latency.*), seed 7$", printed, re.MULTILINE)
    (eight,) = re.findall(r"^(.*Latency.*), seed 8$", printed, re.MULTILINE)
    assert seven == again != eight


def test_nothing_is_imported_for_suites_that_do_not_use_it(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import sys\ndef test_it():\n    assert 'pymongo' not in sys.modules\n"
    )
    outcomes, printed = run(tmp_path)
    assert outcomes == {"test_it": "PASSED"}, printed
