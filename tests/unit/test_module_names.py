"""No two modules have the same name: a traceback, a log line and a search name one file."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pymongo_resilience_instrumentation

import pymongo_resilience

PACKAGES = (pymongo_resilience, pymongo_resilience_instrumentation)


def test_every_module_has_a_name_of_its_own() -> None:
    """Also without its plurals: ``budget`` and ``budgets`` are one name to who looks for one."""
    found = defaultdict(list)
    for package in PACKAGES:
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            if path.name != "__init__.py":
                found["_".join(word.rstrip("s") for word in path.stem.split("_"))].append(path)
    assert [paths for paths in found.values() if len(paths) > 1] == []
