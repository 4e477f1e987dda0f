"""The arithmetic of the benchmark of a healthy operation, and the complaints of all of them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def test_added_cost_is_compared_with_plain_and_with_contrib_of_the_same_sdk(module: Any) -> None:
    costs = {
        "plain pymongo": 100.0,
        "contrib, SDK on": 150.0,
        "ours, traces and metrics off": 103.0,
        "ours, SDK on": 160.0,
        "ours, SDK on, timeout": 175.0,
    }
    rows = [{"setup": setup, "us": us} for setup, us in costs.items()]

    assert module("healthy").compared({"rows": rows}) == [
        ["plain pymongo", "100", "+0", "1.00", ""],
        ["contrib, SDK on", "150", "+50", "1.50", "1.00"],
        ["ours, traces and metrics off", "103", "+3", "1.03", ""],
        ["ours, SDK on", "160", "+60", "1.60", "1.20"],
        ["ours, SDK on, timeout", "175", "+75", "1.75", "1.50"],
    ]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("script", "arguments", "complaint"),
    [
        ("healthy.py", ["--side", "left"], "invalid choice: 'left'"),
        ("healthy.py", ["--bursts", "many"], "invalid int value: 'many'"),
        ("failing_server.py", ["many"], "'many'"),
        ("make_report.py", ["--only", "all of it"], "no such section: all of it\nthere are: "),
    ],
)
def test_a_bad_argument_is_an_error_in_one_line(
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
        "footprint.py",
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


def test_without_the_server_the_error_says_how_to_compile_it(tmp_path: Path, module: Any) -> None:
    with pytest.raises(SystemExit, match="'make bench' compiles it"):
        module("canned").need(tmp_path / "canned_server")
