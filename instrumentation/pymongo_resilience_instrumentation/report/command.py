"""The command ``pymongo-resilience report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

FAILURE = 1


def add_parser(commands: Any) -> None:
    report: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="draw an HTML file of what was recorded",
        description="Reads what demo --record, testbed --record, a Recorder of the application or "
        "its log as JSON lines have written, and writes one HTML file: faults, operations, "
        "latency, retries by reason and server. Several files are laid over each other, each from "
        "its beginning.",
    )
    report.add_argument("files", nargs="+", type=Path, metavar="FILE")
    report.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="HTML",
        help="what to write (default: report.html)",
    )
    report.add_argument("--title", default="pymongo-resilience", help="of the page")


def run(options: argparse.Namespace) -> int:
    """Prints the path that was written, and returns the exit status."""
    from .page import page  # noqa: PLC0415 - rarely needed
    from .records import ReportError, read  # noqa: PLC0415

    try:
        text = page(read(options.files), options.title)
        options.output.write_text(text, encoding="utf-8")
    except (ReportError, OSError) as error:
        sys.stderr.write(f"pymongo-resilience: error: {error}\n")
        return FAILURE
    sys.stdout.write(f"{options.output}\n")
    return 0
