"""The tables of docs/overload.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markdown import table

Report = dict[str, Any]


def run(report: Report) -> str:
    found = report["overload"]
    return (
        f"pymongo {found['versions']['pymongo']}, seed {found['seed']}; the same clients could do "
        f"{found['could_do']:,.0f} operations/s against the same server without a limit.\n"
    )


def points(report: Report) -> str:
    headings = ["times the capacity", "", "goodput", "attempts", "errors", "p99 ms", "tokens"]
    return table(
        [*headings, "client CPU", "late ms"],
        [
            [
                f"{each['load']:g}",
                each["side"],
                f"{each['goodput']:.1%}",
                f"{each['attempts']:.2f}",
                f"{each['errors']:.1%}",
                "-" if each["p99_ms"] is None else f"{each['p99_ms']:.0f}",
                "-" if each["tokens"] is None else f"{each['tokens']:.1f}",
                f"{each['busy']:.0%}",
                f"{each['late_ms']:.0f}",
            ]
            for each in report["overload"]["points"]
        ],
    )


def bars(report: Report) -> str:
    return table(
        ["what", "bar", "measured", ""],
        [
            [each["what"], each["bar"], each["measured"], "met" if each["met"] else "**missed**"]
            for each in report["overload"]["bars"]
        ],
    )


BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Report], str]]] = {
    name: (("overload",), block)
    for name, block in (("points", points), ("run", run), ("bars", bars))
}
