"""What a check found: one line each."""

from __future__ import annotations

import enum
from typing import NamedTuple

from pymongo_resilience.rules.explanations import Symptom


class Level(enum.IntEnum):
    OK = 0
    NOTE = 1
    """Good to know, or not checked."""
    WARNING = 2
    """Works, and may fail or cost later."""
    WRONG = 3
    """Operations fail."""


class Finding(NamedTuple):
    """Immutable; without credentials, values of documents or texts that a server wrote."""

    check: str
    """The concern in one word: ``uri``, ``dns``, ``tcp``, ``tls``, ``hello``, ..."""
    level: Level
    text: str
    advice: str = ""
    server: str | None = None
    """``"host:port"``."""
    symptom: Symptom | None = None


def diagnosed(
    check: str,
    symptom: Symptom,
    more: str = "",
    *,
    level: Level = Level.WRONG,
    server: str | None = None,
) -> Finding:
    """A symptom in the classifier's words, and ``more`` about it."""
    advice = f"check {symptom.check}"
    return Finding(check, level, f"{symptom.says}{more}", advice, server, symptom)
