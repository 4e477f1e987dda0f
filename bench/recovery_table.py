"""The table of bench/recovery.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markdown import table

Report = dict[str, Any]


def recovery(report: Report) -> str:
    found = report["recovery"]
    said = ", ".join(f"{what} {number}" for what, number in found["versions"].items())
    headings = ["fault", "", "pymongo", "with the library", "bar", ""]
    lines = [
        [
            *(row[name] for name in ("fault", "kind", "plain", "ours", "bar")),
            "met" if row["kept"] else "**missed**",
        ]
        for row in found["rows"]
    ]
    return f"`{found['command']}`, with {said}:\n\n" + table(headings, lines)


def real(report: Report) -> str:
    found = report["recovery-real"]
    used = ", ".join(f"{what} {number}" for what, number in found["versions"].items())
    lines = [[row[name] for name in ("fault", "kind", "plain", "ours")] for row in found["rows"]]
    headings = ["fault", "", "pymongo", "with the library"]
    return f"`{found['command']}`, {found['server']}, with {used}:\n\n" + table(headings, lines)


def blips(report: Report) -> str:
    found = report["blips"]
    used = ", ".join(f"{what} {number}" for what, number in found["versions"].items())

    def cell(failed: int, operations: int, slowest: float) -> str:
        return f"{failed} of {operations}" + (f", {slowest:.1f} s" if failed < operations else "")

    sides = ["plain", "bare", "timeout"]
    lines = [
        [row["kind"], row["api"], f"{row['seconds']:g}", *(cell(*row[side]) for side in sides)]
        for row in found["rows"]
    ]
    headings = ["outage", "", "seconds", "pymongo", "the defaults", "a timeout of 20 s"]
    return f"`{found['command']}`, with {used}:\n\n" + table(headings, lines)


BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Report], str]]] = {
    "recovery": (("recovery",), recovery),
    "recovery-real": (("recovery-real",), real),
    "blips": (("blips",), blips),
}
