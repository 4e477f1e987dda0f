"""A pymongo that is not supported is left alone, and OpenTelemetry says which it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.child_programs import ended

PROGRAM = """
import logging, sys
import pymongo

logging.basicConfig()
if sys.argv[1] != pymongo.version:
    pymongo.version_tuple = tuple(map(int, sys.argv[1].split(".")))
import pymongo_resilience
from pymongo_resilience.testing import is_active

pymongo_resilience.instrument()
print(is_active())
"""


def claimed(version: str, installed: Path) -> tuple[str, str]:
    """What a process prints and logs that has this version, as far as anybody can tell."""
    metadata = installed / f"pymongo-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: pymongo\nVersion: {version}\n")
    path = os.pathsep.join((str(installed), os.environ.get("PYTHONPATH", "")))
    status, output, errors = ended([sys.executable, "-c", PROGRAM, version], {"PYTHONPATH": path})
    assert status == 0, errors
    return output.strip(), errors


@pytest.mark.parametrize("version", ["4.18.0", "5.0.0"])
def test_it_is_not_patched_and_the_conflict_is_logged(version: str, tmp_path: Path) -> None:
    instrumented, errors = claimed(version, tmp_path)
    assert instrumented == "False"
    assert '"pymongo >= 4.19, < 5"' in errors
    assert f'"pymongo {version}"' in errors


def test_a_supported_version_is_patched(tmp_path: Path) -> None:
    assert claimed("4.19.0", tmp_path)[0] == "True"
