"""What the documents quote of bench/report.json: their tables, and what their figures show.

``make_report.py --documents`` writes them; tests/test_bench_report.py fails where they differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import overload_tables
import performance_tables
import recovery_table

ROOT = Path(__file__).parent.parent
REPORT = Path(__file__).with_name("report.json")
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
OVERLOAD = ROOT / "bench" / "overload.md"
RECOVERY = ROOT / "bench" / "recovery.md"
FIGURES = {
    "overload": ROOT / "docs" / "overload.svg",
    "fleet": ROOT / "bench" / "fleet.svg",
}

SHOWN = {"overload": ("overload",), "fleet": ("fleet",)}
"""The sections that a figure shows."""

Report = dict[str, Any]
Block = Callable[[Report], str]
BLOCKS: dict[Path, dict[str, tuple[tuple[str, ...], Block]]] = {
    README: performance_tables.README,
    PERFORMANCE: performance_tables.BLOCKS,
    OVERLOAD: overload_tables.BLOCKS,
    RECOVERY: recovery_table.BLOCKS,
}
"""By document, and by the name in the marks around each: the sections that it needs, and itself."""
BEGIN = "<!-- {}: begin (written by `make report`) -->\n"
END = "<!-- {}: end -->\n"


def as_it_should_be(document: Path, report: Report) -> str:
    text = document.read_text()
    for name, (needs, block) in BLOCKS[document].items():
        before, _, rest = text.partition(BEGIN.format(name))
        _, mark, after = rest.partition(END.format(name))
        if not mark:
            raise ValueError(f"{document.name} has no marks for {name!r}")
        made = _not_measured(needs, report) or block(report)
        text = before + BEGIN.format(name) + made + END.format(name) + after
    return text


def _not_measured(needs: tuple[str, ...], report: Report) -> str:
    missing = ",".join(name for name in needs if name not in report)
    return f'Not measured yet: `make report ARGS="--only {missing}"` does.\n' if missing else ""


def prose(document: Path) -> str:
    """What people wrote: all but the blocks."""
    return re.sub(
        r"<!-- (\S+): begin.*?<!-- \1: end -->", "", document.read_text(), flags=re.DOTALL
    )


def data_of(figure: str, report: Report) -> Any:
    """What a figure shows."""
    if figure == "overload":
        return report["overload"]["points"]
    return report["fleet"]["outcomes"]


def mark_of(figure: str, report: Report) -> str:
    """Names the data in the figure itself, whatever draws it."""
    text = json.dumps(data_of(figure, report), sort_keys=True)
    return "drawn from sha256:" + hashlib.sha256(text.encode()).hexdigest()


def write(report: Report) -> list[Path]:
    """Write tables and figures; returns the files that are other than before."""
    now = {document: as_it_should_be(document, report) for document in BLOCKS}
    changed = [document for document, text in now.items() if document.read_text() != text]
    for document in changed:
        document.write_text(now[document])
    for name, file in FIGURES.items():
        if _not_measured(SHOWN[name], report):
            continue
        mark = mark_of(name, report)
        if not file.exists() or mark not in file.read_text():
            _draw(name, report, file, mark)
            changed.append(file)
    return changed


def _draw(name: str, report: Report, file: Path, mark: str) -> None:
    try:
        import fleet_figure
        import overload_figure
    except ModuleNotFoundError as missing:
        raise SystemExit(
            f"the tables are written, {file.name} is not drawn: {missing.name} is not there, "
            "which the extra bench brings"
        ) from None
    draw = {
        "overload": overload_figure.draw,
        "fleet": fleet_figure.draw,
    }[name]
    draw(data_of(name, report), file, mark)
