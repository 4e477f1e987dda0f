"""What a process imports for ``instrument()``: nothing that most of them never need."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation import in_progress
from support.child_programs import ended

PROGRAM = """
import json, sys
import pymongo, opentelemetry.metrics, opentelemetry.trace
import opentelemetry.instrumentation.instrumentor

before = set(sys.modules)
import pymongo_resilience

pymongo_resilience.instrument()
print(json.dumps(sorted(set(sys.modules) - before)))
"""
ENGINE, OTHER_HALF = "pymongo_resilience", "pymongo_resilience_instrumentation"


def imported(**variables: str) -> set[str]:
    status, output, errors = ended([sys.executable, "-c", PROGRAM], variables)
    assert status == 0, errors
    return set(json.loads(output))


@pytest.fixture(scope="module")
def by_default() -> set[str]:
    return imported()


def test_the_driver_is_imported_no_further(by_default: set[str]) -> None:
    """Neither is anything else: what is new is the library's own."""
    assert {name.partition(".")[0] for name in by_default} == {ENGINE, OTHER_HALF}


def test_what_only_tools_need_is_left_out(by_default: set[str]) -> None:
    tools = {
        f"{OTHER_HALF}.tools.{name}"
        for name in ("cli", "dashboards", "demo", "doctor", "pytest_plugin", "testbed")
    }
    of_gridfs = {
        f"{OTHER_HALF}.{name}" for name in ("features.gridfs.stream_deadlines", "driver.gridfs")
    }
    left_out = tools | of_gridfs
    assert all(map(importlib.util.find_spec, left_out))
    assert by_default & left_out == set()


EACH_FIRST = """
import os, pkgutil, sys
import pymongo, opentelemetry.metrics, opentelemetry.trace
import pymongo_resilience

def importable(name):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            __import__(name)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0

half = "pymongo_resilience_instrumentation"
found = pkgutil.walk_packages([os.path.join(sys.argv[1], half)], half + ".")
names = [each.name for each in found if not each.name.endswith("__main__")]
assert len(names) > 50, names
print(*(name for name in names if not importable(name)))
"""


def test_each_module_can_be_imported_first() -> None:
    """None needs another one that needs it in turn, and so a certain order."""
    home = str(Path(in_progress.__file__).parent.parent)
    status, output, errors = ended([sys.executable, "-c", EACH_FIRST, home], {})
    assert status == 0, errors
    assert output.split() == []
