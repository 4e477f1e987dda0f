"""``pymongo-resilience doctor``: connects as the application would, and reports what to change.

``uri`` reads the URI and queries DNS, ``probe`` tries one server on its own socket,
``compared_members`` compares the servers' answers, and ``login`` uses a pymongo client.
``examination`` runs all of them within a time limit and decides, with the same classification that
adds the last sentence to ``ServerSelectionTimeoutError``.

Of the URI, only host names, names of options and the replica set's name are printed.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from pymongo_resilience_instrumentation.failures.symptoms import Symptom


class Level(enum.IntEnum):
    OK = 0
    NOTE = 1
    """Information, or a check that was not possible."""
    WARNING = 2
    """Works now, but may fail or be slow later."""
    WRONG = 3
    """Operations fail."""


class Finding(NamedTuple):
    """The result of one check. Immutable. Contains no credentials, no values of documents, and no
    texts from a server.
    """

    check: str
    """The subject in one word: ``uri``, ``dns``, ``tcp``, ``tls``, ``hello``, ..."""
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
    """Return a finding for a symptom. ``more`` is appended to its description."""
    advice = f"check {symptom.check}"
    return Finding(check, level, f"{symptom.says}{more}", advice, server, symptom)
