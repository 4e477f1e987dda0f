"""The public names, some of which are imported only where someone asks for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pymongo_resilience

PACKAGE = Path(pymongo_resilience.__file__).parent


def test_no_module_has_the_name_of_a_function() -> None:
    """Once it was imported, it would stand in the place of the function."""
    modules = {module.stem for module in PACKAGE.iterdir()}
    assert modules & set(pymongo_resilience.__all__) == set()


def test_all_of_them_are_there_in_a_fresh_process() -> None:
    program = (
        "from pymongo_resilience import *; import pymongo_resilience;"
        "print(*(n for n in pymongo_resilience.__all__ if n in globals()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == pymongo_resilience.__all__


def test_another_name_is_none_of_ours() -> None:
    with pytest.raises(AttributeError, match="'pymongo_resilience' has no attribute 'Polices'"):
        pymongo_resilience.Polices  # type: ignore[attr-defined]  # noqa: B018 - it is what fails
