"""What the documents quote is in bench/report.json, and nothing else is quoted; scripts start.

``python bench/make_report.py --documents`` writes the tables and figures.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"
SCRIPTS = [each.name for each in BENCH.glob("*.py") if "ArgumentParser" in each.read_text()]
DOCUMENTS = ("README.md", "docs/performance.md", "bench/overload.md", "bench/recovery.md")


@pytest.fixture
def documents(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("documents")


@pytest.fixture
def report() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((BENCH / "report.json").read_text())
    return kept


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_say_what_the_report_says(documents: Any, report: dict[str, Any], name: str) -> None:
    document = ROOT / name
    assert documents.as_it_should_be(document, report) == document.read_text(), (
        "run: python bench/make_report.py --documents"
    )


@pytest.mark.parametrize("figure", ["overload", "fleet"])
def test_figures_are_drawn_from_the_report(
    documents: Any, report: dict[str, Any], figure: str
) -> None:
    if not set(documents.SHOWN[figure]) <= set(report):
        pytest.skip(f"not measured yet: {figure}")
    assert documents.mark_of(figure, report) in documents.FIGURES[figure].read_text(), (
        "run: make report ARGS=--documents"
    )


def test_each_side_has_a_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    sides = importlib.import_module("overload_runs").SIDES
    styles = importlib.import_module("overload_figure").STYLES
    assert {each.name for each in sides} <= set(styles)


def test_nothing_measured_is_written_by_hand(documents: Any) -> None:
    """Where nobody would notice that it is true no more."""
    prose = re.sub(r"`[^`]*`", "", documents.prose(documents.PERFORMANCE))

    assert re.findall(r"\d[\d,.]* ?(?:%|us|ms|KiB|times|instructions)(?!\w)", prose) == []


def test_the_report_names_no_machine_and_no_date(report: dict[str, Any]) -> None:
    text = json.dumps(report)

    assert not re.findall(r"/(?:home|tmp|usr|work)/|localhost|127\.0\.0\.1|\b20\d\d-\d\d", text)
    assert not {"cores", "load_average"} & set(report["overload"])


def test_each_section_names_its_command_and_versions(
    monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    sections = importlib.import_module("make_report").SECTIONS
    assert list(report) == [name for name in sections if name in report]
    for name, (command, _) in sections.items():
        assert (ROOT / command.split()[1]).exists()
        if name not in report:
            continue
        assert report[name]["command"] == command
        assert report[name]["versions"]["pymongo"]


@pytest.mark.thorough("a process for each script")
@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_a_script_starts(script: str) -> None:
    pytest.importorskip("rich")
    if script == "dashboard_figure.py":
        pytest.importorskip("matplotlib", reason="it needs the extra `bench`")
    command = [sys.executable, str(BENCH / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script}")


@pytest.mark.thorough("thousands of documents, and four processes of clients")
@pytest.mark.parametrize("script", ["hedging.py", "resumable.py"])
def test_a_short_run_keeps_its_bars(script: str) -> None:
    pytest.importorskip("rich")
    command = [sys.executable, str(BENCH / script), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
