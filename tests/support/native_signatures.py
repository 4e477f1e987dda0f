"""The private names of a pymongo that draws spans itself, with their parameters.

Recorded of its branch (PYTHON-5947, 4.18.0.dev0). To record another one, in its environment:

    PYTHONPATH=tests python -m support.native_signatures > tests/support/native_signatures.txt
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from pymongo_resilience_instrumentation import driver

RECORDED = Path(__file__).with_suffix(".txt")


def names() -> Iterator[str]:
    """All that the library uses, as ``module:owner.name``; a module's own have no owner."""
    for part in driver.private_names.parts():
        for name in part.names:
            yield f"{part.place}{'.' if ':' in part.place else ':'}{name}"


def signature(name: str) -> str | None:
    """The parameters, empty of what is no function; None where it is not there to look at."""
    module, _, path = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    for each in path.split("."):
        if not hasattr(found, each):
            return None
        found = getattr(found, each)
    try:
        return " ".join(inspect.signature(found).parameters) if inspect.isroutine(found) else ""
    except ValueError:
        return ""


def recorded() -> dict[str, str]:
    lines = RECORDED.read_text().splitlines()
    return {name: parameters for name, _, parameters in (line.partition(" ") for line in lines)}


if __name__ == "__main__":
    lines = sorted(f"{each} {signature(each) or ''}".rstrip() for each in {*names()})
    sys.stdout.write("\n".join(lines) + "\n")
