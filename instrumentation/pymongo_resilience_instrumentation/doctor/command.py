"""The command ``pymongo-resilience doctor``."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "MONGODB_URI"
WELL, WRONG, USAGE = 0, 1, 2
_MOST = 1_000_000


def add_parser(commands: Any) -> None:
    doctor: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="connect as the application would, and say what to change",
        description="Checks the URI, DNS, connections, TLS, the servers, the login and this "
        "installation, in five seconds at most, and ends in a verdict with what to change. Prints "
        "no credential. Exit status 0 where all is well, 1 where something is wrong, 2 for a wrong "
        "usage.",
    )
    doctor.add_argument(
        "uri", nargs="?", metavar="URI", help=f"{VARIABLE} by default, which other users do not see"
    )
    doctor.add_argument("--json", action="store_true", help="all findings as JSON")
    doctor.add_argument(
        "--deep", action="store_true", help="longer waits, and idle connections: ten seconds"
    )
    doctor.add_argument(
        "--idle",
        type=_positive(float),
        default=0.0,
        metavar="SECONDS",
        help="leave connections idle for so long, then use them: firewalls forget them",
    )
    doctor.add_argument(
        "--processes",
        type=_positive(int),
        default=1,
        metavar="N",
        help="how many processes the application has: for the limit of connections (default: 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Prints, and returns the exit status."""
    from .examination import examine  # noqa: PLC0415 - other commands do without pymongo
    from .output import as_json, as_text, has_colours  # noqa: PLC0415

    uri = options.uri or os.environ.get(VARIABLE)
    if not uri:
        sys.stderr.write(f"pymongo-resilience: error: no URI: give one, or set {VARIABLE}\n")
        return USAGE
    with warnings.catch_warnings():
        # pymongo's about options, whose texts are not ours.
        warnings.simplefilter("ignore")
        examination = examine(
            uri, deep=options.deep, idle_seconds=options.idle, processes=options.processes
        )
    colours = has_colours(sys.stdout)
    text = as_json(examination) if options.json else as_text(examination, colours=colours)
    sys.stdout.write(f"{text}\n")
    return WELL if examination.verdict.well else WRONG


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind("0")
        if not 0 < value < _MOST:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number greater than 0")
        return value

    return parse
