"""Runs the programs of ``tests/programs``, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent.parent / "programs"
SUPPORT = str(PROGRAMS.parent)
HANGS_AFTER = 90
"""Seconds that a program has. Each takes a few seconds, or many on a busy machine."""


def run(
    name: str, *arguments: str, prefix: tuple[str | Path, ...] = (), **variables: str
) -> tuple[Any, str]:
    """The program's answer, and what it wrote to standard error."""
    status, output, errors = ended(
        [*prefix, sys.executable, PROGRAMS / f"{name}.py", *arguments], variables
    )
    assert status == 0, errors
    assert "Traceback" not in errors, errors
    return json.loads(output), errors


def ended(command: list[str | Path], variables: dict[str, str]) -> tuple[int, str, str]:
    """Status, output and errors of a program, without what would configure the library here."""
    prefixes = ("PYMONGO_RESILIENCE_", "OTEL_")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(prefixes)
    }
    with subprocess.Popen(
        command,
        env=environment | {"PYTHONFAULTHANDLER": "1", "PYTHONPATH": SUPPORT} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            output, errors = program.communicate(timeout=HANGS_AFTER)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGABRT)  # all print where they stand, its children too
            output, errors = program.communicate()
            raise AssertionError(f"it hangs:\n{output}\n{errors}") from None
    return program.returncode, output, errors
