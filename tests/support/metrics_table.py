"""The tables of docs/metrics.md, read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


@dataclass(frozen=True)
class Row:
    """One metric."""

    kind: str
    attributes: frozenset[str]
    in_prometheus: str


def metrics_table() -> dict[str, Row]:
    """By name."""
    rows = re.findall(
        r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| `([^`]+)` \|", DOCUMENT.read_text(), re.MULTILINE
    )
    return {
        name: Row(kind, frozenset(re.findall(r"`([^`]+)`", attributes)), in_prometheus)
        for name, kind, attributes, in_prometheus in rows
    }
