"""The arithmetic of the benchmark of a healthy operation."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"


def test_added_cost_is_compared_with_plain_and_with_contrib_of_the_same_sdk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    costs = {
        "plain pymongo": 100.0,
        "contrib, SDK on": 150.0,
        "ours, traces and metrics off": 103.0,
        "ours, SDK on": 160.0,
        "ours, SDK on, timeout": 175.0,
    }
    rows = [{"setup": setup, "us": us} for setup, us in costs.items()]

    assert importlib.import_module("healthy").compared({"rows": rows}) == [
        ["plain pymongo", "100", "+0", "1.00", ""],
        ["contrib, SDK on", "150", "+50", "1.50", "1.00"],
        ["ours, traces and metrics off", "103", "+3", "1.03", ""],
        ["ours, SDK on", "160", "+60", "1.60", "1.20"],
        ["ours, SDK on, timeout", "175", "+75", "1.75", "1.50"],
    ]
