"""The public face has the types that it promises: right uses pass, wrong ones are found."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pymongo_resilience

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE = Path(__file__).parents[1] / "typing" / "usage.py"
ENGINE = Path(pymongo_resilience.__file__).parent
CONFIGURATION = """\
[mypy]
strict = true

[mypy-pymongo_resilience_instrumentation.*]
follow_imports = skip
"""

pytest.importorskip("mypy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("typing")
    (made / "mypy.ini").write_text(CONFIGURATION)
    return made


def mypy(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=mypy.ini", "--cache-dir=cache",
         "--no-pretty", "--no-error-summary", "--show-error-codes", "--no-color-output", str(path)],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ENGINE.parent)},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )  # fmt: skip


def test_right_uses_pass_and_every_ignored_error_is_there(folder: Path) -> None:
    """Strict, it reports each ``type: ignore`` that ignores nothing, or another error."""
    checked = mypy(USAGE, folder)
    assert (checked.stdout, checked.stderr, checked.returncode) == ("", "", 0)


@pytest.mark.parametrize("name", pymongo_resilience.__all__)
def test_the_whole_public_face_is_used(name: str) -> None:
    uses = USAGE.read_text().partition("# Strategies")[2]
    assert re.search(rf"\b{name}\b", uses)


@pytest.mark.parametrize("face", [pymongo_resilience.instrument, pymongo_resilience.override])
def test_arguments_come_by_keyword(face: Callable[..., object]) -> None:
    """But for the configuration: what has no order can be added to without breaking anyone."""
    by_position = [
        name
        for name, parameter in inspect.signature(face).parameters.items()
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
    ]
    assert by_position in (["config"], [])


def test_the_package_says_that_it_is_typed() -> None:
    assert (ENGINE / "py.typed").is_file()
