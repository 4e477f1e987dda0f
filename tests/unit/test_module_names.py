"""No two modules have the same name: a traceback, a log line and a search name one file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pymongo_resilience_instrumentation

import pymongo_resilience

PACKAGES = (pymongo_resilience, pymongo_resilience_instrumentation)


def test_every_module_has_a_name_of_its_own() -> None:
    found = Counter(
        path.name
        for package in PACKAGES
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        if path.name != "__init__.py"
    )
    assert [name for name, times in found.items() if times > 1] == []
