"""What the documents quote is in bench/report.json, and nothing else is quoted.

``python bench/make_report.py --documents`` writes the tables and figures.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "bench"
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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_another_figure_in_the_report_makes_another_document(
    documents: Any, report: dict[str, Any], name: str
) -> None:
    document = ROOT / name
    before = documents.as_it_should_be(document, report)
    for section in {"healthy", "healthy-async"} & set(report):
        changed = copy.deepcopy(report)
        for row in changed[section]["rows"]:
            row["us"] *= 2 + (row["setup"] != "plain pymongo")
        assert (documents.as_it_should_be(document, changed) != before) == (
            name == "docs/performance.md" or (name, section) == ("README.md", "healthy")
        )
    fleet = copy.deepcopy(report)
    for outcome in fleet["fleet"]["outcomes"]:
        outcome["goodput"] += 0.1
    assert (documents.as_it_should_be(document, fleet) != before) == (name == "bench/overload.md")
    changed = copy.deepcopy(report)
    changed["recovery"]["rows"][0]["ours"] = "0 / 0"
    assert (documents.as_it_should_be(document, changed) != before) == (name == "bench/recovery.md")
    report["overload"]["points"][0]["goodput"] += 0.1
    assert (documents.as_it_should_be(document, report) != before) == (name == "bench/overload.md")


@pytest.mark.parametrize("figure", ["overload", "fleet"])
def test_figures_are_drawn_from_the_report(
    documents: Any, report: dict[str, Any], figure: str
) -> None:
    if not set(documents.SHOWN[figure]) <= set(report):
        pytest.skip(f"not measured yet: {figure}")
    assert documents.mark_of(figure, report) in documents.FIGURES[figure].read_text(), (
        "run: make report ARGS=--documents"
    )


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


def test_a_section_measured_anew_replaces_itself_alone(
    monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    module = importlib.import_module("make_report")
    found = {"start_ms": 12.345678, "client_kib": 4.0, "plain_client_kib": 50.0}

    merged = module.merged(report, "footprint", found)

    assert merged["footprint"]["start_ms"] == 12.35
    assert {name: kept for name, kept in merged.items() if name != "footprint"} == {
        name: kept for name, kept in report.items() if name != "footprint"
    }


def test_what_is_not_measured_is_said_with_the_command_that_does(documents: Any) -> None:
    text = documents.as_it_should_be(documents.PERFORMANCE, {})

    assert 'make report ARGS="--only footprint"' in text
    assert 'make report ARGS="--only healthy"' in text


def test_a_document_without_its_marks_is_an_error(documents: Any, tmp_path: Path) -> None:
    broken = tmp_path / "performance.md"
    broken.write_text("no marks")
    documents.BLOCKS[broken] = documents.BLOCKS[documents.PERFORMANCE]
    try:
        with pytest.raises(ValueError, match="has no marks for 'healthy'"):
            documents.as_it_should_be(broken, {})
    finally:
        del documents.BLOCKS[broken]
