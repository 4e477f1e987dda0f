"""Counts and quantiles of what a side met: pure."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .records import Fault, Hedge, Operation, Side

STRETCHES: Final = ("before", "during", "between", "after")
"""Of the faults."""


class Latency(NamedTuple):
    """Of many operations, in seconds; those of none are None. Immutable."""

    operations: int
    errors: int
    median: float | None
    p99: float | None
    longest: float | None


def latency(operations: Sequence[Operation]) -> Latency:
    times = sorted(each.seconds for each in operations)
    errors = sum(each.error is not None for each in operations)
    return Latency(
        len(times), errors, _quantile(times, 0.5), _quantile(times, 0.99), _quantile(times, 1)
    )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def stretches(side: Side) -> Mapping[str, Latency]:
    """By when an operation ran: while a fault was in force, or before, between or after them."""
    spans = merged(side.faults)
    found: dict[str, list[Operation]] = {name: [] for name in STRETCHES}
    for each in side.operations:
        found[_stretch(each, spans)].append(each)
    return {name: latency(each) for name, each in found.items() if each}


def merged(faults: Sequence[Fault]) -> list[tuple[float, float]]:
    """When any fault was in force, in order and without overlap."""
    spans: list[tuple[float, float]] = []
    for each in sorted(faults):
        end = each.at + each.seconds
        if spans and each.at <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((each.at, end))
    return spans


def _stretch(operation: Operation, spans: Sequence[tuple[float, float]]) -> str:
    if not spans:
        return "before"
    began, ended = operation.at, operation.at + operation.seconds
    number = bisect.bisect_right(spans, (ended, math.inf))
    if number and spans[number - 1][1] >= began:
        return "during"
    if number == 0:
        return "before"
    return "after" if number == len(spans) else "between"


def by_server(side: Side) -> Mapping[str, tuple[Latency, int]]:
    """Of each server, its commands or the operations that ended there, and the attempts that failed
    there."""
    operations: dict[str, list[Operation]] = defaultdict(list)
    failed = Counter(each.server for each in side.retries if each.server is not None)
    for each in side.commands or side.operations:
        if each.server is not None:
            operations[each.server].append(each)
    names = sorted({*operations, *failed})
    return {name: (latency(operations.get(name, [])), failed[name]) for name in names}


def hedges(side: Side) -> Mapping[str, tuple[Counter[str], float]]:
    """Of each server that was too slow, the hedged reads by who answered first, and the median of
    the seconds after which they were hedged."""
    found: dict[str, list[Hedge]] = defaultdict(list)
    for each in side.hedges:
        found[each.server].append(each)
    return {
        server: (
            Counter(each.winner for each in found[server]),
            median(each.waited for each in found[server]),
        )
        for server in sorted(found)
    }


def reasons(side: Side) -> Counter[str]:
    """Of attempts that were repeated."""
    return Counter(each.reason for each in side.retries if not each.is_final)


def columns(side: Side, seconds: float, count: int) -> list[list[Operation]]:
    """The operations by when they ended, in ``count`` equal parts of ``seconds``."""
    found: list[list[Operation]] = [[] for _ in itertools.repeat(None, count)]
    for each in side.operations:
        part = (each.at + each.seconds) / seconds * count if seconds else 0
        found[max(0, min(count - 1, int(part)))].append(each)
    return found
