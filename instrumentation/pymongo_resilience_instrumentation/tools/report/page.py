"""The report as one HTML file: no script, and nothing that is loaded."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Final

from . import summary
from .chart import COLOURS, WINNERS, colour, timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .records import Side
    from .summary import Latency

PLAIN: Final = "plain"
"""The side that is pymongo alone."""
MOST_FAULTS: Final = 200
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
    """Of at least one side."""
    seconds = max(each.end for each in sides)
    counts = sum((summary.reasons(each) for each in sides), Counter[str]())
    named = [reason for reason, _ in counts.most_common(len(COLOURS) - 1)]
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(sentence)}</p>" for sentence in _sentences(sides)),
        "<h2>Sides</h2>",
        *_sides(sides),
        "<h2>Timelines</h2>",
        "<p>Retries: "
        + _keys({reason: colour(reason, named) for reason in sorted(counts)})
        + "</p>",
        "<p>Latency: from the median to the longest; red: errors that the application got.</p>",
    ]
    hedged = any(each.hedges for each in sides)
    if hedged:
        body.append(f"<p>Hedged reads, by who answered first: {_keys(WINNERS)}</p>")
    for side in sides:
        body += [f"<h3>{escape(side.name)}</h3>", timeline(side, seconds, named)]
    body += ["<h2>Latency around the faults</h2>", *_stretches(sides)]
    body += ["<h2>Retries by reason</h2>", *_reasons(sides, counts)]
    if hedged:
        body += ["<h2>Hedged reads</h2>", *_hedges(sides)]
    body += ["<h2>Servers</h2>", *_servers(sides)]
    body += ["<h2>Faults</h2>", *_faults(sides)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _sentences(sides: Sequence[Side]) -> Iterator[str]:
    for side in sides:
        found = summary.latency(side.operations)
        if not found.operations:
            attempts = _plural(len(side.retries), "failed attempt")
            yield f"{side.name}: {attempts}; no operations were recorded."
            continue
        said = (
            f"{side.name}: {_plural(found.operations, 'operation')} through "
            f"{_plural(len(side.faults), 'fault')}, {_plural(found.errors, 'error')} reached the "
            f"application, {_plural(summary.reasons(side).total(), 'retry')}"
        )
        if side.hedges:
            said += f", {_plural(len(side.hedges), 'hedged read')}"
        if side.balance is not None:
            lost, doubled = side.balance
            said += f", {_plural(lost, 'acknowledged write')} lost, {doubled} doubled"
        yield f"{said}."
    if PLAIN not in {each.name for each in sides}:
        yield "Plain pymongo was not recorded, so there is nothing to compare with."


def _plural(count: int, noun: str) -> str:
    several = noun.removesuffix("y") + "ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else several}"


def _sides(sides: Sequence[Side]) -> Iterator[str]:
    rows = [
        [
            side.name,
            *_figures(summary.latency(side.operations)),
            str(summary.reasons(side).total()),
            *(["", ""] if side.balance is None else map(str, side.balance)),
        ]
        for side in sides
    ]
    yield _table(["side", *_HEADINGS, "retries", "writes lost", "doubled"], rows)


def _stretches(sides: Sequence[Side]) -> Iterator[str]:
    rows = [
        [f"{side.name}, {name}", *_figures(found)]
        for name in summary.STRETCHES
        for side in sides
        if (found := summary.stretches(side).get(name)) is not None
    ]
    yield _table(["", *_HEADINGS], rows)


def _reasons(sides: Sequence[Side], counts: Counter[str]) -> Iterator[str]:
    found = [summary.reasons(side) for side in sides]
    rows = [[reason, *(str(each[reason]) for each in found)] for reason, _ in counts.most_common()]
    yield _table(["reason", *(side.name for side in sides)], rows)


def _hedges(sides: Sequence[Side]) -> Iterator[str]:
    rows = [
        [f"{side.name}, {server}", *(str(winners[each]) for each in WINNERS), _ms(waited)]
        for side in sides
        for server, (winners, waited) in summary.hedges(side).items()
    ]
    yield _table(["slow server", *WINNERS, "hedged after (median)"], rows)


def _servers(sides: Sequence[Side]) -> Iterator[str]:
    rows = [
        [f"{side.name}, {server}", *_figures(found), str(failed)]
        for side in sides
        for server, (found, failed) in summary.by_server(side).items()
    ]
    yield _table(["server", *_HEADINGS, "failed attempts"], rows)
    breakers = [
        [f"{side.name}, {server}", f"{at:.2f} s", what]
        for side in sides
        for at, server, what in side.breakers
    ]
    if breakers:
        yield _table(["circuit breaker", "when", "what"], breakers)


def _faults(sides: Sequence[Side]) -> Iterator[str]:
    found = {each for side in sides for each in side.faults}
    rows = [
        [each.text, f"{each.at:.2f} s", f"{each.seconds:.2f} s", str(each.struck)]
        for each in sorted(found)[:MOST_FAULTS]
    ]
    yield _table(["fault", "began", "lasted", "struck"], rows)
    if len(found) > MOST_FAULTS:
        yield f"<p>and {len(found) - MOST_FAULTS} more</p>"


_HEADINGS: Final = ("operations", "errors", "median", "p99", "longest")


def _figures(found: Latency) -> list[str]:
    times = [_ms(each) for each in (found.median, found.p99, found.longest)]
    return [str(found.operations), str(found.errors), *times]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:,.1f} ms"


def _keys(colours: Mapping[str, str]) -> str:
    return " ".join(
        f'<span class="key" style="background:{fill}"></span> {escape(name)}'
        for name, fill in colours.items()
    )


def _table(headings: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
