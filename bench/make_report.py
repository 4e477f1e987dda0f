"""Measures what the documents quote, writes it into bench/report.json, and them from it.

    python bench/make_report.py             all but overload and recovery-real: about an hour
        --only healthy,footprint            some of it anew; the rest stays as it is
        --only overload                     ten minutes, on a machine that is quiet
        --only recovery-real                on a mongod: PYMONGO_RESILIENCE_TESTBED_SERVER
        --overload FILE                     what overload.py --json FILE has measured
        --documents                         measures nothing, writes the documents
        --quick                             only shows that everything runs

Needs a C compiler, and the extras ``dev`` and ``bench``. The file names versions, and
neither dates nor machines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import blips
import documents
from fleet import fleet
from footprint import footprint
from healthy import SIDES, healthy, versions
from real_recovery import measured
from recovery import KINDS, ROWS, recovery

from pymongo_resilience.config import SERVER_VARIABLE

KEPT = documents.REPORT
QUICK = KEPT.parent.parent / "build" / "report.json"
DIGITS = 4
"""Of each figure; more would be noise."""
OVERLOAD = Path(__file__).with_name("overload.py")
OF_THE_MACHINE = ("cores", "load_average")

Section = dict[str, Any]


def progress(text: Any) -> None:
    """Progress inside of a section, which may take minutes."""
    print(f"   {text}", flush=True)


def overload(*, quick: bool) -> Section:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "overload.json"
        command = [sys.executable, str(OVERLOAD), "--json", str(file)]
        subprocess.run([*command, *(["--quick"] if quick else [])], check=True)  # noqa: S603 - our own
        return taken_from(file)


def taken_from(file: Path) -> Section:
    """What ``overload.py`` wrote, without what it says of its machine."""
    found: Section = json.loads(file.read_text())
    package = found.pop("pymongo")
    kept = {name: value for name, value in found.items() if name not in OF_THE_MACHINE}
    return {"versions": {"pymongo": package}, **kept}


def recovery_real(*, quick: bool) -> Section:
    server = os.environ.get(SERVER_VARIABLE, "")
    if not server.startswith("mongod"):
        raise SystemExit(f"recovery-real needs a mongod: {SERVER_VARIABLE}=mongod=PATH")
    return measured(
        server, kinds=KINDS[:1] if quick else KINDS, times=1 if quick else 3, progress=progress
    )


SECTIONS: dict[str, tuple[str, Callable[..., Section]]] = {
    "healthy": ("python bench/healthy.py", healthy),
    "healthy-async": ("python bench/healthy.py --side async", partial(healthy, side=SIDES[1])),
    "footprint": ("python bench/footprint.py", lambda quick: footprint(2 if quick else 15)),
    "recovery": (
        "python bench/recovery.py",
        lambda quick: recovery(("cut",) if quick else tuple(ROWS), progress=progress),
    ),
    "blips": (
        "python bench/blips.py",
        lambda quick: {
            "rows": blips.measured(
                ["cut"] if quick else list(blips.KINDS),
                [0.2] if quick else blips.LENGTHS,
                blips.APIS,
            )
        },
    ),
    "recovery-real": ("python bench/real_recovery.py mongod=PATH", recovery_real),
    "fleet": ("python bench/fleet.py", fleet),
    "overload": ("python bench/overload.py", overload),
}
"""The command that measures each by itself, and what does it here."""


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def chosen_from(text: str, of: tuple[str, ...], what: str) -> list[str]:
    """What a command line names, in the order of ``of``; ends the program where it names others."""
    if text == "all":
        return list(of)
    named = [each.strip() for each in text.split(",")]
    unknown = [each for each in named if each not in of]
    if unknown:
        raise SystemExit(f"no such {what}: {', '.join(unknown)}\nthere are: {', '.join(of)}")
    return [each for each in of if each in named]


def merged(kept: dict[str, Section], name: str, found: Section) -> dict[str, Section]:
    """The report with that section in place of its former one, in the order of ``SECTIONS``."""
    command = SECTIONS[name][0]
    both = kept | {name: {"command": command, "versions": versions(), **rounded(found)}}
    return {each: both[each] for each in SECTIONS if each in both}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"of {', '.join(SECTIONS)}, or all")
    parser.add_argument("--overload", type=Path, metavar="FILE", help="take that section from FILE")
    parser.add_argument("--documents", action="store_true", help="only write the documents anew")
    parser.add_argument("--quick", action="store_true", help=f"into build/{QUICK.name} alone")
    given = parser.parse_args()
    file = QUICK if given.quick else KEPT
    kept = json.loads(file.read_text()) if file.exists() else {}
    names = [name for name in SECTIONS if name not in {"overload", "recovery-real"}]
    if given.only:
        names = chosen_from(given.only, tuple(SECTIONS), "section")
    elif given.overload or given.documents:
        names = []
    if given.overload:
        kept = merged(kept, "overload", taken_from(given.overload))
    file.parent.mkdir(exist_ok=True)
    for number, name in enumerate(names, 1):
        print(f"{number} of {len(names)}: {name}: {SECTIONS[name][0]}", flush=True)
        began = time.monotonic()
        kept = merged(kept, name, SECTIONS[name][1](quick=given.quick))
        # Each at once: what is interrupted has not measured in vain.
        file.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"   {time.monotonic() - began:.0f} s", flush=True)
    file.write_text(json.dumps(kept, indent=1) + "\n")
    if not given.quick:
        for path in documents.write(kept):
            print(f"written: {path}")


if __name__ == "__main__":
    main()
