"""Where MongoDB's specification tests are: in a checkout that a variable names.

None of them is part of this project. Shared by whatever reads them, in whatever format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

VARIABLE: Final = "MONGODB_SPECIFICATIONS"
NOT_SET: Final = (
    f"{VARIABLE} is not set: let it name a checkout of github.com/mongodb/specifications, "
    "whose directory `source` holds these tests"
)


def checkout(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The checkout that the environment names; ``None`` where it names none."""
    named = environ.get(VARIABLE)
    return Path(named) if named else None


def folder(root: Path, suite: str, *within: str) -> Path:
    """The folder of a suite's tests, or one within it.

    Its place is ``source/SUITE/tests`` in a checkout, and ``SUITE`` where somebody has copied the
    tests alone. Raises FileNotFoundError that names both: a checkout without the tests is a
    mistake, and no reason to skip them.
    """
    places = [
        Path(root, "source", suite, "tests", *within),
        Path(root, suite, *within),
    ]
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(f"{VARIABLE}: there is neither {places[0]} nor {places[1]}")


def parameters(load: Callable[[Path], Iterable[Any]], suite: str, *within: str) -> list[Any]:
    """Whatever ``load`` makes of a suite's JSON files, nested ones too, as parameters of a test.

    Without a checkout it is one parameter that is skipped and says why.
    """
    root = checkout()
    if root is None:
        return [pytest.param(None, id="no checkout", marks=pytest.mark.skip(reason=NOT_SET))]
    files = sorted(folder(root, suite, *within).rglob("*.json"))
    if not files:
        raise FileNotFoundError(f"{VARIABLE}: no tests in {folder(root, suite, *within)}")
    return [pytest.param(each, id=str(each)) for file in files for each in load(file)]
