"""A pymongo that is not supported is left alone, and OpenTelemetry says which it is. One that is
newer than the tested ones is used, with a warning."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pymongo_resilience_instrumentation.instrumentor import NEWEST_TESTED
from support.child_programs import ended

PROGRAM = """
import logging, sys
import pymongo

logging.basicConfig()
if sys.argv[1] != pymongo.version:
    pymongo.version = sys.argv[1]
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


@pytest.mark.parametrize("tested", [True, False])
def test_a_supported_version_is_patched(tested: bool, tmp_path: Path) -> None:
    major, minor = NEWEST_TESTED
    version = f"{major}.{minor + (not tested)}.0"
    instrumented, errors = claimed(version, tmp_path)
    assert instrumented == "True"
    warning = f"WARNING:pymongo_resilience:pymongo {version} is newer than"
    assert errors.count("WARNING") == errors.count(warning) == (not tested)
