"""Writes figures into tests/README.md, between two comments with their name."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[1] / "README.md"


def write(name: str, lines: list[str]) -> None:
    """Replace what stands between the comments of ``name``."""
    begin, end = f"<!-- {name}: begin (written by `make {name}`) -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = PAGE.read_text().partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(before + begin + "\n".join(lines) + "\n" + end + after)
