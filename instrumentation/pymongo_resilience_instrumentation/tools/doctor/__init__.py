"""``pymongo-resilience doctor``: connects as the application would and says what to change.

``uri`` reads the URI and asks DNS, ``probe`` tries one server on a socket of its own,
``compared_members`` compares what the servers answered, ``login`` uses a client of pymongo.
``examination`` runs them within a time limit and decides, with the classifier that
``ServerSelectionTimeoutError`` has its last sentence from.

No text holds a value of the URI but host names, option names and the replica set's name.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from pymongo_resilience_instrumentation.failures.symptoms import Symptom


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
