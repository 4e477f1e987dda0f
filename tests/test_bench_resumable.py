"""The benchmark of resumable finds: its bars, its server, and with fewer documents all of it.

How many commands that takes is judged by the whole run alone: see docs/resumable-finds.md.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
EXPECTED = [b"%d" % each for each in range(1000)]
COUNT = 300


@pytest.mark.thorough("thousands of documents are read, a second time with writers beside")
@pytest.mark.parametrize("side", ["sync", "async"])
def test_random_faults_lose_and_double_nothing(side: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "resumable.py", "--quick", "--side", side],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("0 missing, 0 doubled, in order" in line for line in lines)
    assert all("20 faults" in line and "20 resumptions" in line for line in lines)
