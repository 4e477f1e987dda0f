"""Tables of documents that commands write, between two comments with their name."""

from __future__ import annotations

from pathlib import Path


def write(document: Path, name: str, command: str, lines: list[str]) -> None:
    """Replace the lines between the comments of ``name``, which ``command`` writes."""
    begin = f"<!-- {name}: begin (written by `{command}`) -->\n"
    end = f"<!-- {name}: end -->\n"
    before, _, rest = document.read_text().partition(begin)
    _, _, after = rest.partition(end)
    document.write_text(before + begin + "\n".join(lines) + "\n" + end + after)
