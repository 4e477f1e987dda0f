"""docs/architecture.md: what it names is there, and its pictures have each folder and module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ENGINE = ROOT / "pymongo_resilience"
INSTRUMENTATION = ROOT / "instrumentation" / "pymongo_resilience_instrumentation"
TABLE, ENGINE_PICTURE, PICTURE = (
    PAGE.split("## Folders")[0],
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
        assert any(INSTRUMENTATION.rglob(name)) or (ROOT / name).exists()


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
