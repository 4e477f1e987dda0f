"""The trace that the README shows is what a retried write exports today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def shown(file: Path) -> list[str]:
    """The texts without their numbers."""
    return [
        re.sub(r"[\d.]+ms|[\d.]+", "#", each)
        for each in re.findall(r">([^<]+)</text>", file.read_text())
    ]


def test_the_figure_shows_the_spans_of_today(tmp_path: Path) -> None:
    drawn = tmp_path / "trace.svg"
    subprocess.run(
        [sys.executable, ROOT / "bench" / "trace_figure.py", drawn], check=True, timeout=60
    )

    assert shown(drawn) == shown(ROOT / "docs" / "trace.svg"), "run: python bench/trace_figure.py"
    assert [text for text in shown(drawn) if "AutoReconnect" in text or text.endswith("ok")] == [
        "# ms, # attempts, retried_ok",
        "# ms, txn_number #, pymongo#errors#AutoReconnect",
        "# ms, txn_number #, pymongo#errors#AutoReconnect",
        "# ms, txn_number #, ok",
    ]
