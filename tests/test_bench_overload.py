"""The benchmark of overload runs, its server does what it says, and a spent budget stops retries.

How fast anything is, and so its bars, depends on the machine: see docs/overload.md.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
TIMEOUT = 120
CAPACITY = 200.0
a_whole_run = pytest.mark.thorough("the benchmark takes 15 seconds")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("overload_server")


def admitted(capacity: Any, rate: float, seconds: float) -> int:
    return sum(capacity.receive(1 + at / rate)[0] for at in range(round(rate * seconds)))


@pytest.mark.parametrize(("load", "goodput"), [(0.5, 0.5), (1, 1), (2, 8 / 9), (5, 5 / 9), (10, 0)])
def test_each_rejection_costs_the_server_a_tenth_of_a_request(
    server: Any, load: float, goodput: float
) -> None:
    """Admitted a, rejected r: a + r = load and a + r / 10 = 1, once the bucket's first are gone."""
    capacity = server.Capacity(CAPACITY, burst=50, rejection=0.1)
    done = admitted(capacity, load * CAPACITY, 100)
    assert done / CAPACITY / 100 == pytest.approx(goodput, abs=0.005)


def test_rejections_take_their_time_as_well(server: Any) -> None:
    """Ten times as many as requests are all that the server can turn away."""
    capacity = server.Capacity(CAPACITY, burst=0, rejection=0.1)
    answered = [capacity.receive(1.0)[1] for _ in range(1000)]
    assert answered[-1] == pytest.approx(1.0 + 1000 / (10 * CAPACITY))


def test_a_burst_finds_a_bucket_that_is_full(server: Any) -> None:
    """Of 512 within 50 ms, 100 and what refills meanwhile: 400/s * 0.05 s."""
    assert admitted(server.Capacity(rate=400, burst=100), 512 / 0.05, 0.05) == 100 + 19


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("bench") / "overload.json"
    done = subprocess.run(
        [sys.executable, str(BENCH / "overload.py"), "--quick", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@a_whole_run
def test_all_rejected_there_are_as_many_retries_as_tokens(measured: dict[str, Any]) -> None:
    [rejected] = [bar["facts"] for bar in measured["bars"] if "retries" in bar["facts"]]
    assert rejected["retries"] == measured["sizes"]["tokens"]
    assert rejected["tokens_left"] == 0


@a_whole_run
def test_without_retries_each_operation_is_one_attempt(measured: dict[str, Any]) -> None:
    [none] = [point for point in measured["points"] if point["side"] == "no retries"]
    assert none["retries"] == 0
    assert 0 < none["errors"] < 1


@a_whole_run
def test_each_bar_is_judged(measured: dict[str, Any]) -> None:
    assert len(measured["bars"]) == 4
    assert all(isinstance(bar["met"], bool) and bar["measured"] for bar in measured["bars"])
