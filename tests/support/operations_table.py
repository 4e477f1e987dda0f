"""The operations that docs/retries.md lists, by the section that says what becomes of them."""

from __future__ import annotations

import re
from pathlib import Path

RETRIES = Path(__file__).parents[2] / "docs" / "retries.md"

READ = "Reads"
WRITE = "Writes that the server recognizes"
UNSENT = "Other writes"
NEVER = "Never retried once sent"
SECTIONS = (READ, WRITE, UNSENT, NEVER)

WHATEVER = "any"
"""In place of a class: what holds for more than one method, and is no row to derive."""


def section(text: str, heading: str) -> str:
    """What stands under a heading, down to the next one of any level."""
    match = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert match, f"no heading {heading!r}"
    return match[1]


def rows(table: str) -> list[list[str]]:
    """The cells of each row, without the head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def documented() -> dict[str, str]:
    """``"Collection.aggregate with $out or $merge"``, and the section that it is in."""
    text = RETRIES.read_text()
    found: dict[str, str] = {}
    for heading in SECTIONS:
        for owner, methods, *_ in rows(section(text, heading)):
            if owner == WHATEVER:
                continue
            for method in methods.split(", "):
                name = f"{owner}.{method}".replace("`", "")
                assert name not in found, f"{name} is listed twice"
                found[name] = heading
    return found
