"""The arithmetic of the benchmarks of a healthy operation, their bars, and their complaints."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
COSTS = {
    "raw": 100.0,
    "executor alone": 103.0,
    "contrib, API only": 110.0,
    "ours, API only": 113.0,
    "ours, ALWAYS_ON": 150.0,
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def rows(costs: dict[str, float] = COSTS, **more: Any) -> list[dict[str, Any]]:
    shared = {"workload": "find_one", "side": "sync", "at_once": 1, **more}
    return [{**shared, "state": state, "cost": cost} for state, cost in costs.items()]


def test_added_cost_is_compared_with_raw_and_with_contrib_in_the_same_state(module: Any) -> None:
    found = {row["state"]: row for row in module("measuring").compared(rows())}

    assert found["ours, API only"]["added"] == pytest.approx(13)
    assert found["ours, API only"]["of_raw"] == pytest.approx(0.13)
    assert found["ours, API only"]["of_contrib"] == pytest.approx(1.3)
    # Nobody measured contrib in that one.
    assert "of_contrib" not in found["ours, ALWAYS_ON"]


@pytest.mark.parametrize(
    ("row", "judged"),
    [
        ({"state": "executor alone", "of_raw": 0.015}, "<= 1.5% of raw met"),
        ({"state": "executor alone", "of_raw": 0.016}, "<= 1.5% of raw MISSED"),
        ({"state": "ours, API only", "of_raw": 9, "of_contrib": 1.0}, "<= 1.0 of contrib's met"),
        ({"state": "ours, API only", "of_raw": 0, "of_contrib": 1.1}, "<= 1.0 of contrib's MISSED"),
        ({"state": "tenacity", "of_raw": 9}, ""),
    ],
)
def test_each_bar_is_met_up_to_itself(module: Any, row: dict[str, Any], judged: str) -> None:
    assert module("bars").judged(row) == judged


@pytest.mark.parametrize(("at_once", "count"), [(1, 20), (8, 24), (1000, 1000)])
def test_each_thread_or_task_has_the_same_share_of_a_burst(
    module: Any, at_once: int, count: int
) -> None:
    assert module("measuring").burst_of("find_one", 20, at_once) == count


def test_of_instructions_the_least_of_a_process_counts_and_of_processes_the_median(
    module: Any,
) -> None:
    costs = [[5.0, 4.0], [9.0, 1.0], [3.0, 8.0]]
    assert module("measuring").least(costs) == 3
    assert module("measuring").of_all(costs) == pytest.approx((3.25, 4.5, 7.25))


def test_a_batch_and_a_document_are_differences_of_cursors(module: Any) -> None:
    of_raw = {"find_one": 100, "cursor": 2000, "one_batch": 1100, "ten_documents": 110}
    added = {"find_one": 10, "cursor": 119, "one_batch": 20, "ten_documents": 15}
    measured = [
        row
        for workload, raw in of_raw.items()
        for row in rows({"raw": raw, "executor alone": raw + added[workload]}, workload=workload)
    ]

    [part] = module("cursor_costs").parts(measured)

    assert part["find_one"] == 10
    assert part["batch"] == pytest.approx((119 - 20) / 9)
    assert part["document"] == pytest.approx(5 / 990)
    assert part["raw_document"] == pytest.approx(1)
    assert module("cursor_costs").batch_judged(part).endswith(" met")
    assert module("cursor_costs").document_judged(part).endswith(" met")
    assert module("cursor_costs").batch_judged(part | {"batch": 11.1}).endswith(" MISSED")
    assert module("cursor_costs").document_judged(part | {"document": 0.011}).endswith(" MISSED")


def test_growth_is_that_of_what_is_added(module: Any) -> None:
    one = rows({"raw": 100, "executor alone": 110}, case="1 thread")
    many = rows({"raw": 200, "executor alone": 212}, case="8 threads")

    first, second = module("growth").growing(one + many)

    assert "growth" not in first
    assert second["growth"] == pytest.approx(0.2)
    assert second["growth_of_ratio"] < 0
    assert module("growth").judged(second) == "<= 10% MISSED"


def run(script: str, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | ({"PATH": path} if path else {}),
    )


@pytest.mark.parametrize(
    ("script", "arguments", "complaint"),
    [
        ("healthy.py", ["--workloads", "find_two"], "no such workload: find_two\nthere are: find_"),
        ("healthy.py", ["--states", "theirs"], "no such state: theirs\nthere are: raw; raw again;"),
        ("healthy.py", ["--sides", "left"], "no such side: left\nthere are: sync, async"),
        (
            "make_report.py",
            ["--only", "all of it"],
            "no such section: all of it\nthere are: healthy, ",
        ),
    ],
)
def test_what_is_not_known_is_named_beside_what_is(
    script: str, arguments: list[str], complaint: str
) -> None:
    done = run(script, *arguments)

    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "healthy.py",
        "cursor_costs.py",
        "growth.py",
        "footprint.py",
        "gate.py",
        "make_report.py",
        "overload.py",
        "fleet.py",
        "failing_server.py",
        "hedging.py",
        "fail_fast.py",
        "deadlines.py",
        "retry_storm.py",
    ],
)
@pytest.mark.thorough("a process for each script")
def test_help_shows_how_a_script_is_called(script: str) -> None:
    done = run(script, "--help")

    assert done.returncode == 0, done.stderr
    assert f"python bench/{script}" in done.stdout


@pytest.mark.parametrize("script", ["failing_server.py", "growth.py"])
def test_a_number_that_is_none_is_an_error_in_one_line(script: str) -> None:
    done = run(script, *(["--bursts"] if script == "growth.py" else []), "many")

    assert done.returncode == 2
    assert "invalid" in done.stderr
    assert "'many'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_valgrind_the_error_says_what_to_install(tmp_path: Path, module: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(SystemExit, match="apt-get install valgrind"):
            module("bursts").with_callgrind(None, str(tmp_path), 1)


def test_without_the_server_the_error_says_how_to_compile_it(tmp_path: Path, module: Any) -> None:
    with pytest.raises(SystemExit, match="'make bench' compiles it"):
        module("canned").need(tmp_path / "canned_server")
