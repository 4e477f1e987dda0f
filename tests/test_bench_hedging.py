"""The measurement of hedged reads: that it runs, and what it counts as missed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def hedging(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("rich")
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("hedging")


@pytest.mark.thorough("four processes of clients")
def test_a_quick_run_has_a_row_for_each_case_and_nothing_is_left(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    file = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, str(BENCH / "hedging.py"), "--quick", "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert [(each["workers"], each["side"]) for each in rows] == [
        (workers, "hedge") for workers in ("8 threads", "100 tasks")
    ]
    assert [each["left"] for each in rows] == [{}] * 2
    assert all(each["hedges"][1] * 20 <= each["hedges"][0] for each in rows)
