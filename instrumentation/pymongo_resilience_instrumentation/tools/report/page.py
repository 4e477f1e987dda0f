"""The report as one HTML file, with a timeline of each side: no script, nothing that is loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from . import records
from .records import Latency, Operation, Side

WIDTH: Final = 1000
COLUMNS: Final = 250
LEFT: Final = 70
COLOURS: Final = ("#4269d0", "#efb118", "#3ca951", "#a463f2", "#9c6b4e", "#6cc5b0", "#97bbf5")
"""Of reasons; the last one is for all others."""
WINNERS: Final = ("first", "hedge", "neither")
"""Who answered a hedged read first."""
_FAULTS, _LATENCY, _ERRORS, _RETRIES = (20, 36), (66, 150), (218, 12), (238, 40)
"""Where each lane begins, and its height."""
_SHORTEST, _DECADES = -4.0, 6.0
"""Of latencies: from 0.1 ms to 100 s, as powers of ten."""
PLAIN: Final = "plain"
"""The side that is pymongo alone."""
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1120px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:.5em 0 1.5em;display:block;overflow-x:auto}
th,td{text-align:right;padding:.2em .8em;border-bottom:1px solid #8884}
th:first-child,td:first-child{text-align:left}
svg{width:100%;font-size:12px;fill:currentColor}
.grid{stroke:#8884}.tick{fill:#888}.fault{fill:#d9534f99}.range{stroke:#4269d0;stroke-width:2.5}
.median{fill:#1b2f6b}.error{fill:#d9001b}.key{display:inline-block;width:.8em;height:.8em}
@media(prefers-color-scheme:dark){body{background:#16181d;color:#ddd}.median{fill:#cdd8ff}}
"""


def page(sides: Sequence[Side], title: str) -> str:
    """The whole file."""
    seconds = max(each.end for each in sides)
    counts = sum((records.reasons(each) for each in sides), Counter[str]())
    named = [reason for reason, _ in counts.most_common(len(COLOURS) - 1)]
    keys = " ".join(
        f'<span class="key" style="background:{colour(reason, named)}"></span> {escape(reason)}'
        for reason in sorted(counts)
    )
    body = [f"<h1>{escape(title)}</h1>", "<h2>Sides</h2>"]
    body.append(_table(["side", *_HEADINGS, *_OF_SIDES], map(_side, sides)))
    if PLAIN not in {each.name for each in sides}:
        body.append("<p>Plain pymongo was not recorded: there is nothing to compare with.</p>")
    body += ["<h2>Timelines</h2>", f"<p>Retries: {keys}</p>"]
    body.append("<p>Latency: from the median to the longest; red: errors the application got.</p>")
    for side in sides:
        body += [f"<h3>{escape(side.name)}</h3>", timeline(side, seconds, named)]
    by_side = [records.reasons(side) for side in sides]
    rows = [[reason, *(each[reason] for each in by_side)] for reason, _ in counts.most_common()]
    body += ["<h2>Retries by reason</h2>", _table(["reason", *(s.name for s in sides)], rows)]
    if any(each.hedges for each in sides):
        rows = [
            [f"{side.name}, {server}", *(winners[each] for each in WINNERS), _ms(waited)]
            for side in sides
            for server, (winners, waited) in records.hedges(side).items()
        ]
        headings = ["slow server, by who answered first", *WINNERS, "hedged after (median)"]
        body += ["<h2>Hedged reads</h2>", _table(headings, rows)]
    rows = [
        [f"{side.name}, {server}", *_figures(latency), failed]
        for side in sides
        for server, (latency, failed) in records.by_server(side).items()
    ]
    body += ["<h2>Servers</h2>", _table(["server", *_HEADINGS, "failed attempts"], rows)]
    rows = [
        [f"{side.name}, {server}", f"{at:.2f} s", what]
        for side in sides
        for at, server, what in side.breakers
    ]
    if rows:
        body.append(_table(["circuit breaker", "when", "what"], rows))
    rows = [
        [f"{side.name}, {each.text}", f"{each.at:.2f} s", f"{each.seconds:.2f} s", each.struck]
        for side in sides
        for each in side.faults
    ]
    body += ["<h2>Faults</h2>", _table(["fault", "began", "lasted", "struck"], rows)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


_HEADINGS: Final = ("operations", "errors", "median", "p99", "longest")
_OF_SIDES: Final = ("faults", "retries", "writes lost", "doubled")


def _side(side: Side) -> list[Any]:
    retries, balance = records.reasons(side).total(), side.balance or ("", "")
    figures = _figures(records.latency(side.operations))
    return [side.name, *figures, len(side.faults), retries, *balance]


def _figures(found: Latency) -> list[Any]:
    times = [_ms(each) for each in (found.median, found.p99, found.longest)]
    return [found.operations, found.errors, *times]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:,.1f} ms"


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    if not body:
        return "<p>none</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def timeline(side: Side, seconds: float, named: Sequence[str]) -> str:
    """``seconds``: what the width stands for; ``named``: the reasons that have a colour."""
    lanes = {"faults": _FAULTS, "latency": _LATENCY, "errors": _ERRORS, "retries": _RETRIES}
    height = sum(max(lanes.values())) + 22
    parts = [*_axes(seconds, lanes, height), *_fault_bars(side, seconds), *_latency(side, seconds)]
    parts += _retries(side, seconds, named)
    label = escape(f"timeline of {side.name}")
    return (
        f'<svg viewBox="0 0 {WIDTH + LEFT + 10} {height}" role="img" aria-label="{label}">'
        + "".join(parts)
        + "</svg>"
    )


def colour(reason: str, named: Sequence[str]) -> str:
    number = named.index(reason) if reason in named else len(COLOURS) - 1
    return COLOURS[min(number, len(COLOURS) - 1)]


def _x(at: float, seconds: float) -> float:
    return LEFT + WIDTH * max(0.0, min(1.0, at / seconds if seconds else 0.0))


def _column(at: float, seconds: float) -> int:
    return max(0, min(COLUMNS - 1, int(at / seconds * COLUMNS) if seconds else 0))


def _y(value: float) -> float:
    top, height = _LATENCY
    share = (math.log10(max(value, 1e-9)) - _SHORTEST) / _DECADES
    return top + height * (1 - max(0.0, min(1.0, share)))


def _axes(seconds: float, lanes: Mapping[str, tuple[int, int]], height: int) -> Iterator[str]:
    for name, (top, _) in lanes.items():
        yield f'<text x="0" y="{top + 10}">{name}</text>'
    for power, name in ((-3, "1 ms"), (-1, "100 ms"), (1, "10 s")):
        y = _y(10.0**power)
        yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.0f}" y2="{y:.0f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{name}</text>'
    # At most ten marks.
    step = 10 ** math.ceil(math.log10(seconds / 10)) if seconds else 1
    for mark in range(int(seconds / step) + 1):
        x, at = _x(mark * step, seconds), f"{mark * step:g}"
        yield f'<text class="tick" x="{x:.0f}" y="{height - 6}">{at} s</text>'


def _fault_bars(side: Side, seconds: float) -> Iterator[str]:
    top, height = _FAULTS
    rows = 4
    for number, each in enumerate(side.faults):
        x, end = _x(each.at, seconds), _x(each.at + each.seconds, seconds)
        y = top + height / rows * (number % rows)
        title = escape(
            f"{each.text}: {each.at:.2f} s, for {each.seconds:.2f} s, {each.struck} times"
        )
        yield (
            f'<rect class="fault" x="{x:.1f}" y="{y:.0f}" width="{max(1.5, end - x):.1f}" '
            f'height="{height / rows - 1:.0f}"><title>{title}</title></rect>'
        )


def _latency(side: Side, seconds: float) -> Iterator[str]:
    width = WIDTH / COLUMNS
    columns: list[list[Operation]] = [[] for _ in range(COLUMNS)]
    for each in side.operations:
        columns[_column(each.at + each.seconds, seconds)].append(each)
    for number, operations in enumerate(columns):
        found = records.latency(operations)
        if found.median is None or found.p99 is None or found.longest is None:
            continue
        x = LEFT + width * (number + 0.5)
        title = f"{found.operations} operations, median {found.median * 1000:.1f} ms, "
        title += f"longest {found.longest * 1000:.0f} ms, {found.errors} errors"
        yield (
            f'<line class="range" x1="{x:.1f}" x2="{x:.1f}" y1="{_y(found.median):.1f}" '
            f'y2="{_y(found.longest) - 1:.1f}"><title>{title}</title></line>'
            f'<circle class="median" cx="{x:.1f}" cy="{_y(found.median):.1f}" r="1.5"/>'
        )
        if found.errors:
            y = _ERRORS[0] + _ERRORS[1] / 2
            yield f'<circle class="error" cx="{x:.1f}" cy="{y}" r="3">'
            yield f"<title>{title}</title></circle>"


def _retries(side: Side, seconds: float, named: Sequence[str]) -> Iterator[str]:
    parts: list[Counter[str]] = [Counter() for _ in range(COLUMNS)]
    for each in side.retries:
        if not each.is_final:
            parts[_column(each.at, seconds)][each.reason] += 1
    most = max((each.total() for each in parts), default=0)
    top, height = _RETRIES
    width = WIDTH / COLUMNS
    for number, counts in enumerate(parts):
        bottom = float(top + height)
        for kind, count in sorted(counts.items()):
            tall = height * count / most
            bottom -= tall
            yield (
                f'<rect x="{LEFT + width * number:.1f}" y="{bottom:.1f}" width="{width:.1f}" '
                f'height="{tall:.1f}" fill="{colour(kind, named)}">'
                f"<title>{escape(kind)}: {count}</title></rect>"
            )
