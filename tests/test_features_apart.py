"""Each feature can be deleted: its folder, and its row in the table of features."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation import features, patches

ROOT = Path(__file__).parent.parent
CORE = (
    "tests/integration/test_instrument.py",
    "tests/integration/test_retryable_reads.py",
    "tests/integration/test_cursor_timeouts.py",
)
"""Tests that use no feature."""


def test_the_table_has_every_feature() -> None:
    there = {each.stem for each in Path(features.__path__[0]).iterdir()} - {
        "__init__",
        "__pycache__",
    }
    assert set(patches.FEATURES) == there


@pytest.mark.thorough("half a minute each")
@pytest.mark.parametrize("name", patches.FEATURES)
def test_without_a_feature_the_rest_works(name: str, tmp_path: Path) -> None:
    for package in ("pymongo_resilience", "instrumentation"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    copied = tmp_path / "instrumentation" / "pymongo_resilience_instrumentation"
    deleted = copied / "features" / name
    shutil.rmtree(deleted) if deleted.is_dir() else deleted.with_suffix(".py").unlink()
    table = copied / "patches.py"
    before = table.read_text()
    table.write_text(before.replace(f'"{name}",', "", 1))
    assert table.read_text() != before
    ours = f"{tmp_path}{os.pathsep}{copied.parent}"
    python = [sys.executable, "-P", "-m", "pytest", "-qq", "-x", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*python, "--part", "core", *CORE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ours, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
