"""The library's sizes only fall: ``sizes.json`` has the last ones that were recorded.

``python tests/test_sizes.py`` records the present ones: in a commit that makes something smaller,
or in one that says why something has to grow.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation import driver

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).with_name("sizes.json")
INSTRUMENTATION = ROOT / "instrumentation" / "pymongo_resilience_instrumentation"
SMALL = 50
"""Lines of code that make no module of their own."""
TRICKS = frozenset({
    "_current_frames", "_getframe", "cell_contents", "co_consts", "co_freevars", "co_names",
    "currentframe", "f_locals", "tb_frame",
})  # fmt: skip
"""Attributes of frames, cells and code objects."""


def modules() -> Iterator[tuple[str, Path]]:
    """Each with its kind: core, features or tools."""
    for folder in (ROOT / "pymongo_resilience", INSTRUMENTATION):
        for file in sorted(folder.rglob("*.py")):
            top = file.relative_to(folder).parts[0]
            yield top if top in {"features", "tools"} else "core", file


def sizes() -> dict[str, int]:
    found = {"lines of the core": 0, "lines of features": 0, "lines of tools": 0}
    found |= {"modules of the core": 0, "small modules of the core": 0, "tricks of the core": 0}
    for kind, file in modules():
        text = file.read_text()
        lines = len(text.splitlines())
        found[f"lines of {'the core' if kind == 'core' else kind}"] += lines
        if kind == "core":
            found["modules of the core"] += 1
            found["small modules of the core"] += file.name != "__init__.py" and lines < SMALL
            found["tricks of the core"] += sum(
                isinstance(node, ast.Attribute) and node.attr in TRICKS
                for node in ast.walk(ast.parse(text))
            )
    parts = *driver.private_names.parts(), *driver.private_names.attributes()
    names = {name for part in parts for name in part.names if name.startswith("_")}
    return found | {"private names of pymongo": len(names)}


@pytest.mark.parametrize("what", json.loads(RECORDED.read_text()) if RECORDED.exists() else [])
def test_it_only_falls(what: str) -> None:
    recorded: dict[str, int] = json.loads(RECORDED.read_text())

    assert sizes()[what] <= recorded[what], "see the docstring of this file"


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(sizes(), indent=1) + "\n")
