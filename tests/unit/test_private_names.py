"""The names of pymongo's private parts stand in ``driver/`` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pymongo_resilience_instrumentation
import pytest
from pymongo_resilience_instrumentation import driver

ROOT = Path(pymongo_resilience_instrumentation.__file__).parent
APART = {"driver", "testbed", "demo", "dashboards"}
MODULES = sorted(
    str(path.relative_to(ROOT))
    for path in ROOT.rglob("*.py")
    if path.relative_to(ROOT).parts[0] not in APART
)
UNDOCUMENTED = {driver.connections.LIMITED, driver.connections.PASSED}
PARTS = [*driver.private_names.parts(), *driver.private_names.attributes()]
PRIVATE = UNDOCUMENTED | {
    name.partition("(")[0]
    for part in PARTS
    for name in part.names
    if name.startswith("_") and not name.startswith("__")
}


def names_in(source: str) -> Iterator[str]:
    """Strings, and attributes of others than ``self``; not what a class says of itself."""
    tree = ast.parse(source)
    own = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in own and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in {"self", "cls"}:
            yield node.attr


def test_private_names_are_found() -> None:
    source = "class A:\n    __slots__ = ('_server',)\nself._x\nloop._server\nvars(a)['_session']\n"
    assert [name for name in names_in(source) if name in PRIVATE] == ["_server", "_session"]
    assert {"_kill_cursors", "_run_operation", "_read"} <= PRIVATE


@pytest.mark.parametrize("module", MODULES)
def test_no_module_outside_of_driver_names_one(module: str) -> None:
    assert [name for name in names_in((ROOT / module).read_text()) if name in PRIVATE] == []
