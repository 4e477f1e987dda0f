"""docs/architecture.md: what it names is there, and its pictures have each folder and module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ENGINE = ROOT / "pymongo_resilience"
INSTRUMENTATION = ROOT / "instrumentation" / "pymongo_resilience_instrumentation"
TABLE, ENGINE_PICTURE, PICTURE = (
    PAGE.split("## The house")[0],
    *re.findall(r"```\n.*?```", PAGE, re.DOTALL),
)
HOPS = PAGE.partition("## One operation, hop by hop")[2]
NAMED = sorted(set(re.findall(r"`([\w./]+(?:\.py|/))`", TABLE + HOPS)))
"""In backticks, with a folder or without: one beside the file named before."""


@pytest.mark.parametrize("name", NAMED)
def test_what_it_names_is_there(name: str) -> None:
    if "/" in name.rstrip("/") or not name.endswith(".py"):
        assert any((place / name).exists() for place in (INSTRUMENTATION, ROOT))
    else:
        assert any(INSTRUMENTATION.rglob(name))


@pytest.mark.parametrize(
    ("package", "picture"),
    [(ENGINE, ENGINE_PICTURE), (INSTRUMENTATION, PICTURE)],
    ids=["engine", "instrumentation"],
)
def test_the_picture_has_every_folder_and_module(package: Path, picture: str) -> None:
    there = {
        f"{each.name}{'/' * each.is_dir()}"
        for each in package.iterdir()
        if each.name[0] != "_" and (each.is_dir() or each.suffix == ".py")
    }
    drawn = set(re.findall(r"(?:^|(?<=, ))[\w.]+(?:\.py|/)(?=[,\s])", picture, re.MULTILINE))
    assert drawn == there


SOURCES = [each for package in (ENGINE, INSTRUMENTATION) for each in package.rglob("*.py")]
MODULES = {name for each in SOURCES for name in (each.stem, each.parent.name)}
OTHERS = {
    "ServerSelectionTimeoutError", "__dict__", "atomic", "close", "to_list", "with_transaction",
}  # fmt: skip
"""What the folders name beside modules."""


@pytest.mark.parametrize(
    "folder",
    sorted(each for each in SOURCES if each.name == "__init__.py"),
    ids=lambda path: path.parent.name,
)
def test_the_modules_that_a_folder_names_are_there(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse(folder.read_text())) or ""
    assert set(re.findall(r"``(\w+)``", docstring)) <= MODULES | OTHERS
