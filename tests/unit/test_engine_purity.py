"""The engine decides with the standard library alone, and with what it is given."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pymongo_resilience

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(pymongo_resilience.__file__).parent
DOORS = {"__main__.py", "testbed.py", "drills.py", "streams.py"}
"""To the command, the test bed, and the consumers of change streams: nothing here imports them."""
MODULES = sorted(each for each in PACKAGE.rglob("*.py") if each.name not in DOORS)
IMPORT_AND_TELL = """
import json, sys
before = set(sys.modules)
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def newly_imported(*names: str) -> set[str]:
    """Top-level names that a fresh interpreter loads for these modules."""
    child = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_TELL, *names],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    return {name.partition(".")[0] for name in json.loads(child.stdout)}


def imported_by(module: Path) -> Iterator[str]:
    """Every import anywhere in the file, those in functions and for type checkers included."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_importing_every_module_loads_the_standard_library_alone() -> None:
    paths = [module.relative_to(PACKAGE.parent).with_suffix("") for module in MODULES]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    loaded = newly_imported(*names)
    assert {name for name in loaded if not is_standard(name)} == {"pymongo_resilience"}


def is_standard(name: str) -> bool:
    """Python's list lacks some private modules, such as ``_missing_stdlib_info`` of Python 3.15."""
    if name in sys.stdlib_module_names:
        return True
    spec = importlib.util.find_spec(name)
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    return folder == Path(sysconfig.get_path("stdlib"))


def test_the_other_half_is_imported_in_one_place() -> None:
    importers = {
        module.name
        for module in MODULES
        for name in imported_by(module)
        if name.startswith("pymongo_resilience_instrumentation")
    }
    assert importers == {"__init__.py"}


@pytest.mark.parametrize(
    ("name", "importers"),
    [
        ("time", {"clock.py"}),
        ("datetime", set()),
        ("asyncio", {"clock.py"}),
        ("random", {"retry_rules.py", "strategy.py"}),  # as defaults that can be replaced
        # Shared by all operations of a client, or of the process.
        ("threading", {"breakers.py", "budget.py", "first_use.py"}),
    ],
)
def test_clock_and_dice_come_from_outside(name: str, importers: set[str]) -> None:
    assert {m.name for m in MODULES if name in imported_by(m)} == importers
