"""The tables of docs/performance.md, each under the command that measures it; that of README.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import footprint as of_footprint
import healthy as of_healthy
from markdown import table

Report = dict[str, Any]


def by(found: Report) -> str:
    versions = ", ".join(f"{what} {number}" for what, number in found["versions"].items())
    return f"`{found['command']}`, with {versions}.\n\n"


def find_one(name: str) -> Callable[[Report], str]:
    return lambda report: by(report[name]) + of_healthy.shown(report[name])


def footprint(report: Report) -> str:
    found = report["footprint"]
    return by(found) + table(["added", ""], of_footprint.lines(found))


IN_THE_README = {
    "contrib, SDK on": "`opentelemetry-instrumentation-pymongo`, SDK on",
    "ours, no SDK, timeout": "this library with a timeout, no SDK",
    "ours, SDK on, timeout": "this library with a timeout, SDK on",
}
"""By setup: what it is called there."""


def cost(report: Report) -> str:
    rows = of_healthy.compared(report["healthy"])
    shown = [
        [IN_THE_README[setup], us, f"{added}, {float(of_plain) - 1:+.0%}"]
        for setup, us, added, of_plain, _ in rows
        if setup in IN_THE_README
    ]
    return table(["a healthy `find_one`", "CPU in us", "more than plain pymongo"], shown)


README: dict[str, tuple[tuple[str, ...], Callable[[Report], str]]] = {
    "cost": (("healthy",), cost),
}
BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Report], str]]] = {
    "healthy": (("healthy",), find_one("healthy")),
    "healthy-async": (("healthy-async",), find_one("healthy-async")),
    "footprint": (("footprint",), footprint),
}
