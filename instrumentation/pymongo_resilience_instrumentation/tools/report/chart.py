"""The timeline of one side as SVG: faults, latency and errors, retries by reason, hedged reads."""

from __future__ import annotations

import math
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Final

from .summary import columns, latency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .records import Side

WIDTH: Final = 1000
COLUMNS: Final = 250
LEFT: Final = 70
COLOURS: Final = ("#4269d0", "#efb118", "#3ca951", "#a463f2", "#9c6b4e", "#6cc5b0", "#97bbf5")
"""Of reasons; the last one is for all others."""
WINNERS: Final = {"first": COLOURS[6], "hedge": COLOURS[2], "neither": COLOURS[1]}
"""Who answered a hedged read first."""
_FAULTS, _LATENCY, _ERRORS, _RETRIES = (20, 36), (66, 150), (218, 12), (238, 40)
_HEDGES = (286, 30)
"""Where each lane begins, and its height."""
_SHORTEST, _DECADES = -4.0, 6.0
"""Of latencies: from 0.1 ms to 100 s, as powers of ten."""


def timeline(side: Side, seconds: float, named: Sequence[str]) -> str:
    """``seconds``: what the width stands for; ``named``: the reasons that have a colour."""
    lanes = {"faults": _FAULTS, "latency": _LATENCY, "errors": _ERRORS, "retries": _RETRIES}
    if side.hedges:
        lanes["hedges"] = _HEDGES
    height = sum(max(lanes.values())) + 22
    parts = [*_axes(seconds, lanes, height), *_faults(side, seconds), *_latency(side, seconds)]
    retries = [(each.at, each.reason) for each in side.retries if not each.is_final]
    parts += _stacks(_RETRIES, retries, seconds, lambda reason: colour(reason, named))
    hedges = [(each.at, each.winner) for each in side.hedges]
    parts += _stacks(_HEDGES, hedges, seconds, lambda winner: WINNERS.get(winner, COLOURS[-1]))
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
    step = next(each for each in _steps() if seconds / each <= 10)  # noqa: PLR2004 - marks
    at = 0.0
    while at <= seconds:
        yield f'<text class="tick" x="{_x(at, seconds):.0f}" y="{height - 6}">{at:g} s</text>'
        at = round(at + step, 6)


def _steps() -> Iterator[float]:
    for power in range(-3, 9):
        yield from (factor * 10.0**power for factor in (1, 2, 5))


def _faults(side: Side, seconds: float) -> Iterator[str]:
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
    for number, operations in enumerate(columns(side, seconds, COLUMNS)):
        found = latency(operations)
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


def _stacks(
    lane: tuple[int, int],
    found: Iterable[tuple[float, str]],
    seconds: float,
    fill: Callable[[str], str],
) -> Iterator[str]:
    """``found``: when, and what is counted by."""
    parts: list[Counter[str]] = [Counter() for _ in range(COLUMNS)]
    for at, kind in found:
        part = int(at / seconds * COLUMNS) if seconds else 0
        parts[max(0, min(COLUMNS - 1, part))][kind] += 1
    most = max((each.total() for each in parts), default=0)
    top, height = lane
    width = WIDTH / COLUMNS
    for number, counts in enumerate(parts):
        bottom = float(top + height)
        for kind, count in sorted(counts.items()):
            tall = height * count / most
            bottom -= tall
            yield (
                f'<rect x="{LEFT + width * number:.1f}" y="{bottom:.1f}" width="{width:.1f}" '
                f'height="{tall:.1f}" fill="{fill(kind)}">'
                f"<title>{escape(kind)}: {count}</title></rect>"
            )
