"""The tables of docs/performance.md, each under the command that measures it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bars
import configurations
import cursor_costs as of_cursors
import footprint as of_footprint
import growth as of_growth
from markdown import table
from measuring import Row, compared, groups
from workloads import FIND

Report = dict[str, Any]

BARRED = (*bars.OF_RAW, *bars.OF_CONTRIB)
NAMES = {
    configurations.CONTROL: "plain pymongo beside itself",
    configurations.EXECUTOR: "executor alone (`TRACES=false METRICS=false`)",
    configurations.TENACITY: "tenacity around the call",
}
SOURCES = ("healthy", "healthy-cpu", "cursors", "growth", "growth-cpu", "footprint")


def verdict(row: Row) -> str:
    """Whether its bar is met, for people who skim."""
    return bars.judged(row).replace("MISSED", "**missed**")


def by(command: str, unit: str) -> str:
    return f"`{command}`: {unit}.\n\n"


def versions(report: Report) -> str:
    kinds: dict[str, list[str]] = {}
    for name in SOURCES:
        if name not in report:
            continue
        said = ", ".join(f"{what} {number}" for what, number in report[name]["versions"].items())
        kinds.setdefault(said, []).append(name)
    if len(kinds) == 1:
        return f"Measured with {next(iter(kinds))}.\n"
    return "".join(f"- {', '.join(names)}: {said}.\n" for said, names in kinds.items())


def all_compared(report: Report, name: str) -> list[list[Row]]:
    return [compared(group) for group in groups(report[name]["rows"])]


def summary(report: Report) -> str:
    """Each bar once: find_one, the best and the worst of all operations, how often it is met."""
    rows = [row for group in all_compared(report, "healthy") for row in group]
    lines = []
    for state in BARRED:
        some = [row for row in rows if row["state"] == state]
        key = "of_raw" if state in bars.OF_RAW else "of_contrib"
        shown: Callable[[float], str] = "{:.0%}".format if key == "of_raw" else "{:.2f}".format
        find = next(row for row in some if row["workload"] == FIND and row["side"] == "sync")
        values = [row[key] for row in some]
        met = sum(bars.judged(row).endswith(" met") for row in some)
        bar = bars.judged(find).rsplit(" ", 1)[0]
        between = f"{shown(min(values))} to {shown(max(values))}"
        lines.append([name_of(state), bar, shown(find[key]), between, f"{met} of {len(some)}"])
    headings = [
        "what is added",
        "bar",
        "find_one, sync",
        "all operations, sync and async",
        "met in",
    ]
    return by(report["healthy"]["command"], "instructions") + table(headings, lines)


def name_of(state: str) -> str:
    shown = state.replace(configurations.API, "no SDK").replace(
        configurations.BY_HAND, "two spans, one record by hand"
    )
    return NAMES.get(state, shown)


def one(source: str) -> Callable[[Report], str]:
    """Every state of find_one, sync."""

    def made(report: Report) -> str:
        [rows] = [
            group
            for group in all_compared(report, source)
            if (group[0]["workload"], group[0]["side"]) == (FIND, "sync")
        ]
        raw = rows[0]["cost"]
        unit = f"{report[source]['unit']} per operation; plain pymongo takes {raw:,.0f}"
        return by(report[source]["command"], unit) + table(
            ["state", "counts", "lower quartile", "median", "upper quartile", "added",
             "of plain's", "of contrib's", "bar"],
            [
                [
                    name_of(row["state"]),
                    *(f"{each:,.0f}" for each in (row["cost"], *row["quartiles"])),
                    f"{row['added']:+,.0f}",
                    f"{row['of_raw']:+.1%}",
                    f"{row['of_contrib']:.2f}" if "of_contrib" in row else "",
                    verdict(row),
                ]
                for row in rows
                if row["state"] != configurations.RAW
            ],
        )  # fmt: skip

    return made


SHOWN = (
    configurations.CONTROL,
    configurations.TENACITY,
    configurations.EXECUTOR,
    *(f"{who}, {what}" for what in (configurations.API, configurations.OFF, configurations.ON)
      for who in (configurations.CONTRIB, configurations.OURS)),
)  # fmt: skip


def every(source: str) -> Callable[[Report], str]:
    """What is added to each operation in each state."""

    def made(report: Report) -> str:
        lines = []
        for group in all_compared(report, source):
            added = {row["state"]: row["added"] for row in group}
            first = group[0]
            lines.append(
                [
                    f"{first['workload']}, {first['side']}",
                    f"{first['cost']:,.0f}",
                    *(f"{added[state]:+,.0f}" for state in SHOWN),
                ]
            )
        unit = f"{report[source]['unit']} added to an operation"
        short = [state.replace(configurations.API, "no SDK") for state in SHOWN]
        return by(report[source]["command"], unit) + table(["", "plain", *short], lines)

    return made


def barred(source: str) -> Callable[[Report], str]:
    """Each operation beside each bar."""

    def cell(row: Row) -> str:
        ratio = (
            f"{row['of_raw']:.1%}" if row["state"] in bars.OF_RAW else f"{row['of_contrib']:.2f}"
        )
        return f"{ratio} {'met' if bars.judged(row).endswith(' met') else '**missed**'}"

    def made(report: Report) -> str:
        found = all_compared(report, source)
        headings = []
        for state in BARRED:
            [row] = [row for row in found[0] if row["state"] == state]
            headings.append(f"{name_of(state)}: {bars.judged(row).rsplit(' ', 1)[0]}")
        lines = [
            [
                f"{group[0]['workload']}, {group[0]['side']}",
                *(cell(row) for state in BARRED for row in group if row["state"] == state),
            ]
            for group in found
        ]
        return by(report[source]["command"], "added cost") + table(["", *headings], lines)

    return made


def cursors(report: Report) -> str:
    found = report["cursors"]
    lines = [
        [
            each["side"],
            name_of(each["state"]),
            *(f"{1000 * each[name]:+,.0f}" for name in ("find_one", "batch")),
            of_cursors.batch_judged(each).replace("MISSED", "**missed**"),
            f"{1000 * each['document']:+,.0f}",
            f"{1000 * each['raw_document']:,.0f}",
            of_cursors.document_judged(each).replace("MISSED", "**missed**"),
        ]
        for each in of_cursors.parts(found["rows"])
    ]
    headings = ["", "", "find_one", "a batch", "bar", "a document", "plain's document", "bar"]
    return by(found["command"], "instructions added") + table(headings, lines)


def growth(source: str) -> Callable[[Report], str]:
    def made(report: Report) -> str:
        found = report[source]
        lines = [
            [
                row["case"],
                name_of(row["state"]),
                f"{row['added']:+,.0f}",
                f"{row['of_raw']:+.1%}",
                *(_growth(row)),
            ]
            for row in of_growth.growing(found["rows"])
        ]
        headings = ["", "", "added", "of plain's", "growth of what is added", "of the ratio", "bar"]
        return by(found["command"], f"{found['unit']} per find_one") + table(headings, lines)

    return made


def _growth(row: Row) -> list[str]:
    verdict = of_growth.judged(row).replace("MISSED", "**missed**")
    if not verdict:
        return ["", "", ""]
    return [f"{row['growth']:+.0%}", f"{row['growth_of_ratio']:+.0%}", verdict]


def footprint(report: Report) -> str:
    found = report["footprint"]
    lines = [
        [what, measured, verdict.replace("MISSED", "**missed**")]
        for what, measured, verdict in of_footprint.judged(found)
    ]
    return by(found["command"], "added") + table(["", "", "bar"], lines)


def figure(_: Report) -> str:
    what = "What is added by state, by operation, and as more threads, tasks and servers take part"
    return f"![{what}](performance.svg)\n"


BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Report], str]]] = {
    "versions": ((), versions),
    "figure": (("healthy", "growth"), figure),
    "summary": (("healthy",), summary),
    "find_one": (("healthy",), one("healthy")),
    "find_one-cpu": (("healthy-cpu",), one("healthy-cpu")),
    "operations": (("healthy",), every("healthy")),
    "operations-bars": (("healthy",), barred("healthy")),
    "operations-cpu": (("healthy-cpu",), every("healthy-cpu")),
    "operations-cpu-bars": (("healthy-cpu",), barred("healthy-cpu")),
    "cursors": (("cursors",), cursors),
    "growth": (("growth",), growth("growth")),
    "growth-cpu": (("growth-cpu",), growth("growth-cpu")),
    "footprint": (("footprint",), footprint),
}
