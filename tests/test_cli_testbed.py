"""``pymongo-resilience testbed``, run as a person or a script runs it: a process and its output."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo_resilience_instrumentation.tools import cli
from pymongo_resilience_instrumentation.tools.testbed import server as embedded
from pymongo_resilience_instrumentation.tools.testbed.testbed_command import strikes
from support.free_ports import consecutive_free_ports
from support.servers import SERVER_PYTHON

from pymongo_resilience.config import PYTHON_VARIABLE, TESTBED_VARIABLES
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet, ShardedCluster, Standalone

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; from pymongo_resilience_instrumentation.tools.cli import main; sys.exit(main())",
]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}
TIMEOUT = 30.0
ROOT = Path(__file__).parent.parent
NO_WHEEL = f"SecantusDB, which has no wheel for Python 3.{sys.version_info[1]}"


@dataclass
class Running:
    """The command, the first line it printed, and what it has told since."""

    process: subprocess.Popen[str]
    uri: str
    told: list[str] = field(default_factory=list)
    told_at: list[float] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self.arrived:
                self.told.append(line)
                self.told_at.append(time.monotonic())
                self.arrived.notify_all()

    def wait_for(self, text: str) -> tuple[str, float]:
        """The first line with ``text`` in it, and when it came."""
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: any(text in line for line in self.told), TIMEOUT
            ), self.told
            lines = zip(self.told, self.told_at, strict=True)
            return next((line, came) for line, came in lines if text in line)


@contextmanager
def running(*arguments: str, end: signal.Signals = signal.SIGTERM, **variables: str) -> Any:
    """The command while it runs; afterwards it was told to end, and did so in good order."""
    process = subprocess.Popen(
        [*PROGRAM, "testbed", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | variables,
        start_new_session=True,
    )
    guard = threading.Timer(TIMEOUT, process.kill)
    guard.start()
    try:
        with process:
            assert process.stdout is not None
            found = Running(process, process.stdout.readline().rstrip("\n"))
            listener = threading.Thread(target=found.listen)
            listener.start()
            try:
                yield found
            finally:
                process.send_signal(end)
                rest = process.stdout.read()
                status = process.wait()
                listener.join()
            assert (status, rest) == (0, ""), found.told
            assert "Traceback" not in "".join(found.told)
    finally:
        guard.cancel()


def ports(uri: str) -> list[int]:
    return [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", uri)]


def test_it_serves_what_it_prints_until_ctrl_c(tmp_path: Path) -> None:
    with running(end=signal.SIGINT, TMPDIR=str(tmp_path)) as testbed:
        assert re.fullmatch(
            r"mongodb://(127\.0\.0\.1:\d+,){2}127\.0\.0\.1:\d+/\?replicaSet=rs0", testbed.uri
        )
        with MongoClient[dict[str, Any]](testbed.uri) as client:
            client.shop.orders.insert_one({"_id": 1})
            assert client.shop.orders.find_one() == {"_id": 1}
        assert list(tmp_path.glob("pymongo-resilience-*"))
        assert "delete its data" in testbed.wait_for("Ctrl-C")[0]
        (port, *_) = ports(testbed.uri)
        with MongoClient[dict[str, Any]](f"mongodb://localhost:{port}") as client:
            assert client.shop.orders.find_one() == {"_id": 1}
            assert client.topology_description.topology_type_name == "ReplicaSetWithPrimary"
    assert not list(tmp_path.glob("pymongo-resilience-*"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    assert len(testbed.told) == 1


def test_topology_members_and_port_are_what_was_asked_for() -> None:
    """And SIGTERM ends it as well."""
    port = consecutive_free_ports(3)
    options = "--topology", "sharded", "--members", "3", "--port", str(port)
    with running(*options) as testbed:
        assert ports(testbed.uri) == list(range(port, port + 3))
        with MongoClient[dict[str, Any]](testbed.uri) as client:
            client.shop.orders.insert_one({})
            assert client.topology_description.topology_type_name == "Sharded"


def thrown(server: EmbeddedServer, kind: Any, seed: int, count: int = 200) -> list[Any]:
    with kind(server.address) as deployment:
        return list(itertools.islice(strikes(deployment, seed), count))


@pytest.mark.parametrize("kind", [ReplicaSet, ShardedCluster, Standalone])
def test_the_chaos_of_a_seed_is_the_same_and_fits_its_deployment(
    server: EmbeddedServer, kind: Any
) -> None:
    first = thrown(server, kind, 1)
    assert first == thrown(server, kind, 1) != thrown(server, kind, 2)
    pauses = [pause for pause, _ in first]
    assert 0.5 <= min(pauses) <= max(pauses) <= 1.5
    with kind(server.address, members=1) as deployment:
        for _, strike in itertools.islice(strikes(deployment, 1), 100):
            deployment.inject(strike.fault(), strike.on)
            deployment.clear()
        struck = set(deployment.injected())
    assert {"Refuse", "Restart", "PoolClearingStorm"} <= struck
    assert ("Election" in struck) is (kind is ReplicaSet)


def test_proxies_before_a_deployment_are_an_uri_as_well(server: EmbeddedServer) -> None:
    with ReplicaSet(server.address) as existing:
        with running("--in-front-of", existing.uri, "--chaos", "--seed", "3") as testbed:
            assert testbed.uri.endswith("?replicaSet=rs0")
            assert len(ports(testbed.uri)) == 3
            assert not {*ports(testbed.uri)} & {*ports(existing.uri)}
            testbed.wait_for("in front of 3 members")
            assert "seed 3" in testbed.wait_for("seed")[0]
            assert re.match(r"\d{4}-\d\d-\d\dT[\d:.+]+  \w+\(", testbed.wait_for(") on ")[0])
            with MongoClient[dict[str, Any]](testbed.uri, retryReads=True) as client:
                assert client.admin.command("hello")["me"] in testbed.uri


def test_a_port_that_is_taken_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    port = consecutive_free_ports(3)
    with socket.create_server(("127.0.0.1", port + 2)):
        assert cli.main(["testbed", "--port", str(port)]) == cli.FAILURE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"{cli.PROGRAM}: error: ")
    assert f"127.0.0.1:{port + 2}" in shown.err
    assert shown.err.count("\n") == 1
    assert not list(tmp_path.glob("pymongo-resilience-*"))


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ("--members 0 --port 70000", ["members is 0", "1 to 50"]),
        ("--topology sharded --members 99 --port 5000", ["members is 99", "1 to 50"]),
        ("--topology standalone --members 3", ["members is 3", "must be 1"]),
        ("--port 70000", ["1 to 65533"]),
        ("--members 1 --port 65536", ["1 to 65535"]),
        ("--chaos --seed -1", ["seed is -1", "at least 0"]),
        ("--seed 1", ["seed is 1", "--chaos"]),
        ("--control 70000", ["control is 70000", "a whole number from 0 to 65535"]),
        ("--drill fire", ["drill is 'fire'", "must be one of rolling-maintenance"]),
    ],
)
def test_options_that_cannot_be_are_one_line(
    arguments: str, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["testbed", *arguments.split()]) == cli.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"{cli.PROGRAM}: error: ")
    assert [fact for fact in facts if fact not in shown.err] == []
    assert shown.err.count("\n") == 1


@pytest.fixture
def without_secantus(monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python does not have it, and no variable names another one."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "secantus" else find(name)
    )
    for variable in TESTBED_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("without_secantus")
@pytest.mark.parametrize(
    ("newest", "named", "facts"),
    [
        ((3, 99), None, ["SecantusDB", 'pip install "pymongo-resilience[testbed]"']),
        ((3, 10), None, [NO_WHEEL, "Python 3.10", *sorted(TESTBED_VARIABLES)]),
        ((3, 99), "/nowhere/python", [PYTHON_VARIABLE, "'/nowhere/python'"]),
    ],
)
def test_a_missing_server_is_one_line_that_names_the_remedy(
    newest: tuple[int, int], named: str | None, facts: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(embedded, "NEWEST_WITH_WHEEL", newest)
    if named is not None:
        monkeypatch.setenv(PYTHON_VARIABLE, named)
    assert cli.main(["testbed"]) == cli.FAILURE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [fact for fact in facts if fact not in shown.err] == []
    assert shown.err.count("\n") == 1


@pytest.mark.usefixtures("without_secantus")
def test_another_python_runs_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages of this one, which may have been built for another version."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {SERVER_PYTHON} "$@"\n')
    python.chmod(0o700)
    (tmp_path / "json.py").write_text("raise SystemExit('a module of another Python')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    with EmbeddedServer() as running, MongoClient[Any](running.uri) as client:
        assert client.admin.command("ping")["ok"] == 1


def test_the_newest_python_with_a_server_is_the_one_that_installs_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["testbed"]
    major, minor = embedded.NEWEST_WITH_WHEEL
    assert requirement.endswith(f"; python_version < '{major}.{minor + 1}'")
