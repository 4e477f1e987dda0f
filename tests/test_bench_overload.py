"""The benchmark of overload runs, its server does what it says, and its bars are judged.

How fast anything is, and so its bars, depends on the machine: see bench/overload.md.
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
a_whole_run = pytest.mark.thorough("the benchmark takes half a minute")


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
def test_without_retries_each_operation_is_one_attempt(measured: dict[str, Any]) -> None:
    some = [point for point in measured["points"] if point["side"].startswith("no retries")]
    assert [point["side"] for point in some] == ["no retries", "no retries, sync"]
    for point in some:
        assert point["attempts"] == pytest.approx(1, abs=0.1)
        assert 0 < point["errors"] < 1


@a_whole_run
def test_each_bar_is_judged(measured: dict[str, Any]) -> None:
    judged = [bar["met"] for bar in measured["bars"]]
    assert len(judged) == 9, "goodput twice, priorities twice, bursts twice, and three more"
    assert [met is None for met in judged].count(True) == 1, "the burst of a few clients"
    assert all(bar["measured"] for bar in measured["bars"])


@pytest.fixture
def bars(server: Any) -> Any:
    return importlib.import_module("overload_bars")


@pytest.mark.parametrize(("without", "ours", "fewer"), [
    (400, 0, 1), (400, 4, 0.99), (400, 400, 0), (0, 0, 1), (0, 3, 0), (4, 8, -1),
])  # fmt: skip
def test_how_many_errors_are_gone(bars: Any, without: int, ours: int, fewer: float) -> None:
    assert bars.fewer_errors(without, ours) == pytest.approx(fewer)


def point(bars: Any, side: str, load: float, cold: float, warm: float) -> Any:
    return bars.Point(load, side, cold, warm, 1.0, 0.0, None, 0.1, 1.0)


@pytest.mark.parametrize(("cold", "warm", "met"), [
    (0.95, 0.98, True), (0.94, 0.98, False), (0.95, 0.97, False), (0.0, 0.0, False),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["", ", sync"])
def test_goodput_is_measured_against_no_retries(
    bars: Any, kind: str, cold: float, warm: float, met: bool
) -> None:
    points = [
        point(bars, "no retries" + kind, 2.0, 1.0, 1.0),
        point(bars, "plain pymongo" + kind, 2.0, 0.5, 0.5),
        point(bars, "this library" + kind, 2.0, cold, warm),
        point(bars, "this library, shedding" + kind, 2.0, 0.9, 0.9),
    ]
    [bar] = bars.goodput(points)
    assert bar.met is met
    assert "plain pymongo: 50.0% and 50.0%" in bar.measured


def test_goodput_of_a_server_that_nobody_reached_is_no_fault(bars: Any) -> None:
    nothing = [point(bars, name, 2.0, 0.0, 0.0) for name in ("no retries", "this library")]
    [bar] = bars.goodput(nothing)
    assert bar.measured == "- and -"


def test_load_shedding_is_measured_against_the_capacity_at_five_times_it(bars: Any) -> None:
    points = [
        point(bars, "this library, shedding" + kind, load, 0.86 if kind else 0.84, 0.9)
        for load in (2.0, 5.0)
        for kind in ("", ", sync")
    ]
    assert [bar.met for bar in bars.shedding(points)] == [False, True]


def test_rejections_at_random_cost_nothing(server: Any) -> None:
    capacity = server.Capacity(CAPACITY, burst=50, rejection=0.1, at_random=0.05)
    done = admitted(capacity, CAPACITY / 2, 100)
    assert done / (CAPACITY / 2) / 100 == pytest.approx(0.95, abs=0.01)
