"""The tables of bench/overload.md."""

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
    return table(
        [
            *("times the rate", "", "goodput, cold", "warm", "attempts", "errors", "p99 ms"),
            *("handshakes rejected", "became Unknown", "first ms", "client CPU", "late ms"),
        ],
        [
            [
                f"{each['load']:g}",
                each["side"],
                f"{each['cold']:.1%}",
                f"{each['goodput']:.1%}",
                f"{each['attempts']:.2f}",
                f"{each['errors']:.1%}",
                "-" if each["p99_ms"] is None else f"{each['p99_ms']:.0f}",
                str(each["rejected_handshakes"]),
                str(each["unknown"]),
                "fails" if each["first_ms"] is None else f"{each['first_ms']:.0f}",
                f"{each['busy']:.0%}",
                f"{each['late_ms']:.0f}",
            ]
            for each in report["overload"]["points"]
        ],
    )


VERDICTS = {True: "met", False: "**missed**", None: ""}


def bars(report: Report) -> str:
    return table(
        ["what", "bar", "measured", ""],
        [
            [each["what"], each["bar"], each["measured"], VERDICTS[each["met"]]]
            for each in report["overload"]["bars"]
        ],
    )


SHOWN_LOADS = (1.0, 2.0, 5.0)
"""Of the sweep; the figure has all of them."""


def fleet(report: Report) -> str:
    """Each case with what every policy makes of it."""
    outcomes = report["fleet"]["outcomes"]
    policies = list(dict.fromkeys(each["policy"] for each in outcomes))
    by_case: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in outcomes:
        if each["case"] != "steady" or each["load"] in SHOWN_LOADS:
            case = tuple(each[name] for name in ("case", "clients", "load", "seconds", "rejection"))
            by_case.setdefault(case, []).append(each)
    return table(["clients", "what happens", *policies], map(_fleet_row, by_case.values()))


def _fleet_row(outcomes: list[dict[str, Any]]) -> list[str]:
    first = outcomes[0]
    clients, load = f"{first['clients']:,}", f"{first['load']:g}x"
    if first["case"] == "steady":
        return [clients, f"{load}: goodput", *(f"{each['goodput']:.1%}" for each in outcomes)]
    if first["case"] == "recovery":
        costly = "rejections cost a tenth" if first["rejection"] else "rejections are free"
        after = f"5 s of {load} end, {costly}: normal after"
        return [clients, after, *(f"{each['normal_after']:.1f} s" for each in outcomes)]
    if first["case"] == "pulse":
        what = f"{first['seconds']:g} s of {load}"
    elif first["case"] == "burst":
        what = f"{first['operations']} operations within 50 ms"
    else:
        what = f"{first['case']} at {load}"
    return [clients, f"{what}: errors", *(f"{each['errors']:,}" for each in outcomes)]


BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Report], str]]] = {
    name: (("overload",), block)
    for name, block in (("points", points), ("run", run), ("bars", bars))
} | {"fleet": (("fleet",), fleet)}
