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
    lines = []
    for each in examination.findings:
        level = _coloured(f"{each.level.name.lower():<8}", each.level, colours)
        server = f"{each.server}: " if each.server else ""
        lines.append(f"{level} {each.check:<8} {server}{each.text}")
        if each.advice and each.level >= Level.WARNING:
            lines.append(f"{'':18}{each.advice}")
    decided = examination.verdict
    colour = Level.OK if decided.well else Level.WRONG
    lines += ["", f"{_coloured('Verdict:', colour, colours)} {decided.text}"]
    if decided.advice:
        lines.append(f"Change:  {decided.advice}")
    return "\n".join(lines)


def as_json(examination: Examination) -> str:
    decided = examination.verdict
    findings = [
        each._asdict()
        | {
            "level": each.level.name.lower(),
            "symptom": None if each.symptom is None else each.symptom.value,
        }
        for each in examination.findings
    ]
    symptom = None if decided.symptom is None else decided.symptom.value
    return json.dumps(
        {
            "verdict": decided._asdict() | {"symptom": symptom},
            "seconds": round(examination.seconds, 3),
            "findings": findings,
        },
        indent=2,
    )


def has_colours(stream: TextIO) -> bool:
    """Source: no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _coloured(text: str, level: Level, colours: bool) -> str:
    return f"\x1b[{_COLOURS[level]}m{text}\x1b[0m" if colours else text
