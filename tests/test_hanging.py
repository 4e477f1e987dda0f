"""A test that hangs is named, with its stack, and the others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HANGING = """
import time, pytest
@pytest.mark.parametrize("side", ["sync", "async"])
def test_hangs(side):
    time.sleep(600 if side == "sync" else 0)
"""


def test_a_test_that_hangs_is_named_and_the_others_run(tmp_path: Path) -> None:
    """The configuration is that of the project, with a shorter time."""
    (tmp_path / "test_hanging.py").write_text(HANGING)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir=."),
            *("-o", "faulthandler_timeout=1", "-p", "no:cacheprovider", "-n", "1"),
            "test_hanging.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "crashed while running 'test_hanging.py::test_hangs[sync]'" in done.stdout
    assert 'test_hanging.py", line 5 in test_hangs' in done.stderr
