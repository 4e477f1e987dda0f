"""The command line as a program: its output read to the middle, and under the package's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "pymongo-resilience": [str(Path(sys.executable).with_name("pymongo-resilience"))],
    "python -m pymongo_resilience": [sys.executable, "-m", "pymongo_resilience"],
}
BROKEN_PIPE = 141
PIPE_SIZE = 4096


@pytest.mark.parametrize("name", COMMANDS)
def test_it_shows_the_options(name: str) -> None:
    done = subprocess.run(
        [*COMMANDS[name], "config"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "PYMONGO_RESILIENCE_TIMEOUT_MS = unset" in done.stdout


@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_has_enough_is_no_error(lines: int) -> None:
    # Unbuffered, so that the program still writes when its reader goes; the pipe is smaller than
    # the output, so that it cannot have finished.
    with subprocess.Popen(
        [*COMMANDS["pymongo-resilience"], "config"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONUNBUFFERED": "1"} if lines else {},
        bufsize=0,
        pipesize=PIPE_SIZE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for _ in range(lines):
            assert child.stdout.readline().startswith(b"PYMONGO_RESILIENCE_")
        child.stdout.close()
        complaint = child.stderr.read()
        assert (child.wait(60), complaint) == (BROKEN_PIPE, b"")
