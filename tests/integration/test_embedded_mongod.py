"""A mongod in the place of SecantusDB: how it is found, started, locked, and ended.

A stand-in with mongod's options is started, since not every machine has a mongod.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation.tools import cli
from pymongo_resilience_instrumentation.tools.testbed.processes import ask
from pymongo_resilience_instrumentation.tools.testbed.server import program as named_program
from support.clients import wait_until
from support.servers import SERVER_PYTHON

from pymongo_resilience.config import SERVER_VARIABLE
from pymongo_resilience.testbed import (
    CutAfter,
    Election,
    EmbeddedServer,
    RealReplicaSet,
    ReplicaSet,
    Restart,
    RollingRestart,
    ShardedCluster,
    SilentPrimary,
    Standalone,
    TestbedError,
)

STAND_IN = Path(__file__).parents[1] / "programs" / "mongod_stand_in.py"


def program(folder: Path, name: str, lines: str) -> Path:
    path = folder / name
    path.write_text(f"#!{SERVER_PYTHON}\n{textwrap.dedent(lines)}")
    path.chmod(0o700)
    return path


@pytest.fixture
def mongod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``server`` is to be."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    if sys.executable == SERVER_PYTHON:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    runs = f"import runpy\nrunpy.run_path({str(STAND_IN)!r}, run_name='__main__')\n"
    return f"mongod={program(tmp_path, 'mongod', runs)}"


def left_behind(folder: Path) -> list[Path]:
    return list(folder.glob("pymongo-resilience-*"))


@pytest.mark.parametrize(
    ("kind", "topology", "count"),
    [
        (ReplicaSet, "ReplicaSetWithPrimary", 3),
        (Standalone, "Single", 1),
        (ShardedCluster, "Sharded", 2),
    ],
)
def test_it_is_behind_every_deployment(
    kind: Any, topology: str, count: int, mongod: str, tmp_path: Path
) -> None:
    with kind(mongod) as deployment, MongoClient[Any](deployment.uri) as client:
        client.shop.orders.insert_one({"_id": 1})
        assert client.shop.orders.find_one() == {"_id": 1}
        assert client.topology_description.topology_type_name == topology
        assert len(deployment.members) == count
        assert deployment.server_description.startswith("MongoDB 8")
    assert not left_behind(tmp_path)


@pytest.mark.thorough("starts three processes")
def test_a_cluster_has_a_mongos_where_there_is_one(mongod: str, tmp_path: Path) -> None:
    (tmp_path / "mongos").symlink_to(tmp_path / "mongod")
    with ShardedCluster(mongod) as cluster, MongoClient[Any](cluster.uri) as client:
        client.shop.orders.insert_one({"_id": 1})
        (folder,) = left_behind(tmp_path)
        assert {each.name for each in folder.iterdir()} == {"config", "shard0", "mongos"}


@pytest.mark.parametrize("kind", ["replica-set", "standalone"])
def test_its_first_user_is_the_only_one(kind: Any, mongod: str) -> None:
    with EmbeddedServer(mongod, kind=kind, user="root", password="p@ss/word") as server:
        with MongoClient[Any](server.uri) as client:
            client.shop.orders.insert_one({"_id": 1})
        host, port = server.address
        with MongoClient[Any](host, port) as client, pytest.raises(OperationFailure, match="auth"):
            client.shop.orders.find_one()


@pytest.mark.parametrize(("wanted", "gigabytes"), [({}, "0.25"), ({"cache_gb": 1.5}, "1.5")])
def test_its_cache_is_as_large_as_asked_for(
    wanted: dict[str, float], gigabytes: str, mongod: str, tmp_path: Path
) -> None:
    script = f"""
        import sys
        from pathlib import Path
        Path({str(tmp_path / "arguments")!r}).write_text(" ".join(sys.argv))
        sys.argv[0] = {mongod.partition("=")[2]!r}
        exec(Path(sys.argv[0]).read_text())
    """
    noted = program(tmp_path, "noted", script)
    with EmbeddedServer(f"mongod={noted}", **wanted):
        arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[arguments.index("--wiredTigerCacheSizeGB") + 1] == gigabytes


FAULTS_OF_PROCESSES = {
    "step down": (Election(gap=0.1), "all", True),
    "kill": (Restart(downtime=0.1, gap=0.1), "primary", False),
    "stop": (SilentPrimary(0.3), "all", True),
    "maintenance": (RollingRestart(downtime=0.1, pause=0.1), 0, False),
}


@pytest.mark.thorough("starts nine processes")
def test_a_set_of_processes_is_struck_and_comes_back(mongod: str, tmp_path: Path) -> None:
    """As far as members show it that do not replicate; tests/chaos/test_ledger.py has real ones."""
    with RealReplicaSet(mongod) as members:
        assert members.server_description.endswith(", 3 members")
        direct = f"{members.uri.partition(',')[0]}/?directConnection=true"
        with MongoClient[Any](direct) as client:
            for fault, on, stays in FAULTS_OF_PROCESSES.values():
                started = client.admin.command("hello")["topologyVersion"]["processId"]
                client.shop.orders.insert_one({})
                members.inject(fault, on).result(60)
                client.admin.command("ping")
                again = client.admin.command("hello")["topologyVersion"]["processId"]
                assert (again == started) is stays
            members.clear(strict=True)
    assert not left_behind(tmp_path)


def test_a_real_set_needs_a_mongod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    with pytest.raises(TestbedError, match="needs a mongod"):
        RealReplicaSet()


def test_it_gets_what_was_sent(mongod: str) -> None:
    """SecantusDB's shortcomings are corrected, and mongod's answers are not."""
    with (
        ReplicaSet(mongod, members=1) as replica_set,
        ReplicaSet("secantus", members=1) as emulated,
    ):
        assert not replica_set.members[0].backend.is_emulated
        assert emulated.members[0].backend.is_emulated
        replica_set.inject(CutAfter("insert"))
        with MongoClient[Any](replica_set.uri) as client:
            client.shop.orders.insert_one({"_id": 1})
            assert client.shop.orders.count_documents({}) == 1
        assert replica_set.repeats == 1


def test_it_is_found_in_the_path(
    mongod: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del mongod
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(SERVER_VARIABLE, "mongod")
    assert named_program("mongod") == named_program(None) == tmp_path / "mongod"
    assert named_program("secantus") is None
    with EmbeddedServer() as embedded:
        assert "secantusVersion" not in ask(embedded.address, {"buildInfo": 1, "$db": "admin"})


@pytest.mark.parametrize(
    ("server", "error", "fact"),
    [
        ("mongo", ValueError, "server is 'mongo', but must be 'secantus', 'mongod'"),
        ("mongod=", ValueError, "server is 'mongod='"),
        ("mongod", TestbedError, "no mongod in the PATH: install MongoDB"),
        ("mongod=/nowhere/mongod", TestbedError, "'/nowhere/mongod' is not an executable"),
    ],
)
def test_what_cannot_start_is_one_error(
    server: str, error: Any, fact: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", "")
    with pytest.raises(error, match=re.escape(fact)):
        ReplicaSet(server)
    status = cli.USAGE if error is ValueError else cli.FAILURE
    for command in ("testbed", "demo"):
        assert cli.main([command, "--server", server]) == status
        shown = capsys.readouterr()
        assert fact in shown.err
        assert shown.err.count("\n") == 1
    monkeypatch.setenv(SERVER_VARIABLE, server)
    with pytest.raises(error, match=SERVER_VARIABLE):
        EmbeddedServer()


@pytest.mark.parametrize(
    ("lines", "timeout", "fact"),
    [
        ("raise SystemExit('the data is of a newer version')", 60.0, "of a newer version"),
        ("import time\ntime.sleep(60)", 1.0, "did not listen in time"),
    ],
)
def test_a_failed_start_leaves_its_last_words(
    lines: str, timeout: float, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    path = program(tmp_path, "mongod", lines)
    server = EmbeddedServer(f"mongod={path}", startup_timeout=timeout)
    with pytest.raises(TestbedError, match=fact):
        server.start()
    assert not left_behind(tmp_path)


def test_it_ends_with_a_parent_that_is_killed(mongod: str, tmp_path: Path) -> None:
    lines = f"""
        import time
        from pymongo_resilience.testbed import EmbeddedServer
        server = EmbeddedServer({mongod!r})
        server.start()
        print(server.address[1], flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(lines)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert left_behind(tmp_path)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not left_behind(tmp_path))
    with pytest.raises(ConnectionRefusedError):
        ask(("127.0.0.1", port), {"ping": 1, "$db": "admin"})
