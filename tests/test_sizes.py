"""Two figures that may only fall: private names of pymongo, and tricks with frames and cells.

``sizes.json`` has the recorded figures. ``python tests/test_sizes.py`` records the present ones: in
a commit that lowers one, or in one that explains why it has to rise. Lines of code have no limit.
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
PACKAGES = (
    ROOT / "pymongo_resilience",
    ROOT / "instrumentation" / "pymongo_resilience_instrumentation",
)
TRICKS = frozenset({
    "_current_frames", "_getframe", "cell_contents", "co_consts", "co_freevars", "co_names",
    "currentframe", "f_locals", "tb_frame",
})  # fmt: skip
"""Attributes of frames, cells and code objects."""


def production_modules() -> Iterator[Path]:
    """Every module that an application runs: the command-line tools are left out."""
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            if file.relative_to(package).parts[0] != "tools":
                yield file


def sizes() -> dict[str, int]:
    tricks = sum(
        isinstance(node, ast.Attribute) and node.attr in TRICKS
        for file in production_modules()
        for node in ast.walk(ast.parse(file.read_text()))
    )
    parts = *driver.private_names.parts(), *driver.private_names.attributes()
    private = {name for part in parts for name in part.names if name.startswith("_")}
    return {"tricks": tricks, "private names of pymongo": len(private)}


@pytest.mark.parametrize("what", json.loads(RECORDED.read_text()))
def test_it_only_falls(what: str) -> None:
    recorded: dict[str, int] = json.loads(RECORDED.read_text())

    assert sizes()[what] <= recorded[what], "see the docstring of this file"


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(sizes(), indent=1) + "\n")
