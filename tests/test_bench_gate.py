"""The gate on instructions: what fails it, what passes, and that it never passes in silence."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"
HERE = {"python": "3.11 x86_64", "pymongo": "4.20.0"}
KEPT: dict[str, Any] = {"made_with": HERE, "ratios": {"find_one": 1.2, "cursor": 1.1}}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("gate")


@pytest.mark.parametrize(
    ("factor", "how"), [(1.0, "passed"), (1.04, "passed"), (1.06, "failed"), (0.5, "passed")]
)
def test_more_than_five_percent_above_the_baseline_fails(
    gate: Any, factor: float, how: str
) -> None:
    now = KEPT["ratios"] | {"find_one": 1.2 * factor}

    judged, why = gate.judgement(KEPT, now, HERE)

    assert judged == how
    assert ("find_one" in why) == (how == "failed")
    assert "cursor" not in why


@pytest.mark.parametrize("now", [{"find_one": 1.2}, KEPT["ratios"] | {"insert_one": 1.2}])
def test_a_ratio_without_its_counterpart_fails(gate: Any, now: dict[str, float]) -> None:
    assert gate.judgement(KEPT, now, HERE)[0] == "failed"


def test_with_other_versions_nothing_is_judged_and_that_is_said(gate: Any) -> None:
    how, why = gate.judgement(KEPT, {"find_one": 9.9, "cursor": 1.1}, HERE | {"pymongo": "4.21.0"})

    assert how == "skipped"
    assert "pymongo: 4.20.0 in the baseline, 4.21.0 here" in why
    assert "recorded anew" in why


@pytest.mark.parametrize("how", ["passed", "failed", "skipped"])
def test_ci_counts_how_it_ended(
    gate: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.junit(tmp_path / "gate.xml", how, "because")
    monkeypatch.syspath_prepend(BENCH.parent / ".ci")
    reports = importlib.import_module("reports")

    assert reports.totals(reports.cases_in(tmp_path / "gate.xml")) == {
        name: int(name == how) for name in ("passed", "failed", "skipped")
    }
    assert ("because" in (tmp_path / "gate.xml").read_text()) == (how != "passed")


def test_the_baseline_is_of_what_the_gate_installs_and_measures(gate: Any) -> None:
    kept = json.loads(gate.BASELINE.read_text())
    lines = (BENCH / "gate-requirements.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))

    assert {name: pinned[name] for name in gate.MADE_WITH} == {
        name: kept["made_with"][name] for name in gate.MADE_WITH
    }
    assert set(kept["ratios"]) == {
        f"{workload}, {side}: {state}"
        for side, workloads in gate.MEASURED.items()
        for workload in workloads
        for state in gate.CHOSEN[1:]
    }
