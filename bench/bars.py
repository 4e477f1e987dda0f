"""The bars that a healthy operation's cost is held against, each once."""

from __future__ import annotations

from typing import Any

import configurations

OF_RAW = {configurations.EXECUTOR: 0.015}
"""Added cost, as a share of plain pymongo's."""
OF_CONTRIB = {
    f"{configurations.OURS}, {configurations.API}": 1.0,
    f"{configurations.OURS}, {configurations.OFF}": 1.2,
    f"{configurations.OURS}, {configurations.UNSAMPLED}": 1.2,
    f"{configurations.OURS}, {configurations.ON}": 1.4,
    f"{configurations.OURS}, {configurations.ON}, {configurations.ON_RETRY}": 1.1,
}
"""As a multiple of what opentelemetry-instrumentation-pymongo adds in the same state."""
GROWTH = 0.10
"""Of what is added, between one thread, task or server and many of them."""
BATCH = 1.1
"""What is added to a batch of a cursor, as a multiple of what is added to a find_one."""
DOCUMENT = 0.01
"""What is added to a document of a cursor, as a share of plain pymongo's; more is measurable."""
IMPORT_MS = 30.0
CLIENT_KIB = 64.0


def verdict(value: float, bar: float, text: str) -> str:
    return f"{text} {'met' if value <= bar else 'MISSED'}"


def judged(row: dict[str, Any]) -> str:
    """A row of ``healthy.py`` beside its bar; empty where it has none."""
    state = row["state"]
    if state in OF_RAW:
        return verdict(row["of_raw"], OF_RAW[state], f"<= {OF_RAW[state]:.1%} of raw")
    if "of_contrib" in row and state in OF_CONTRIB:
        return verdict(row["of_contrib"], OF_CONTRIB[state], f"<= {OF_CONTRIB[state]} of contrib's")
    return ""
