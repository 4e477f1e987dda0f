"""An examination as text, one line a finding, or as JSON.

Rich stays out: it is no dependency of the library, and a broken container has nothing else.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, TextIO

from .findings import Level

if TYPE_CHECKING:
    from .examination import Examination

_COLOURS = {Level.OK: "32", Level.NOTE: "36", Level.WARNING: "33", Level.WRONG: "31;1"}


def as_text(examination: Examination, *, colours: bool) -> str:
    def coloured(text: str, level: Level) -> str:
        return f"\x1b[{_COLOURS[level]}m{text}\x1b[0m" if colours else text

    lines: list[str] = []
    for each in examination.findings:
        server = f"{each.server}: " if each.server else ""
        level = coloured(f"{each.level.name.lower():<8}", each.level)
        lines.append(f"{level} {each.check:<8} {server}{each.text}")
        advice = f"{'':18}{each.advice}"
        if each.advice and each.level >= Level.WARNING and advice not in lines:
            lines.append(advice)
    decided = examination.verdict
    colour = Level.OK if decided.well else Level.WRONG
    lines += ["", f"{coloured('Verdict:', colour)} {decided.text}"]
    return "\n".join([*lines, *([f"Change:  {decided.advice}"] if decided.advice else [])])


def as_json(examination: Examination) -> str:
    findings = [
        each._asdict() | {"level": each.level.name.lower()} for each in examination.findings
    ]
    found = {
        "verdict": examination.verdict._asdict(),
        "seconds": round(examination.seconds, 3),
        "findings": findings,
    }
    return json.dumps(found, indent=2, default=lambda symptom: symptom.value)


def has_colours(stream: TextIO) -> bool:
    """Source: no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
