"""The bars of the benchmark of overload: what is measured, and what it must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import overload_runs as runs
from overload_clients import OK, Operation
from overload_runs import LIBRARY, NO_RETRIES, PLAIN, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overload_clients import Side

GOODPUT, WARM = 0.95, 0.98
RECOVERY_S = 1.0
ATTEMPTS = 1.1
FEWER_ERRORS = 0.99


@dataclass(frozen=True)
class Point:
    """One side under one load."""

    load: float
    side: str
    cold: float
    """Successes of the first seconds, as a part of the capacity."""
    goodput: float
    """The same after the warm-up, as everything below."""
    attempts: float
    """For each operation; counted by the server."""
    errors: float
    """Part of the operations."""
    p99_ms: float | None
    """Of those that succeeded; None where they are too few."""
    busy: float
    """The part of a core that the busiest process of clients took."""
    late_ms: float
    """What the machine was late to begin operations or to reply: 99th percentile."""


@dataclass(frozen=True)
class Bar:
    what: str
    bar: str
    measured: str
    met: bool | None
    """None where it is only measured."""


def point(sizes: Sizes, load: float, side: Side, seed: int) -> Point:
    done = runs.steady(sizes, side, load, seed)
    window = _measured(sizes)
    due, succeeded = done.due(*window), done.succeeded(*window)
    enough = len(succeeded) >= runs.FEWEST
    return Point(
        load=load,
        side=side.name,
        cold=len(done.succeeded(0, sizes.cold)) / sizes.cold / sizes.capacity,
        goodput=len(succeeded) / sizes.measured / sizes.capacity,
        attempts=done.attempts(*window) / len(due),
        errors=_failed(due) / len(due),
        p99_ms=runs.percentile(succeeded, 0.99) * 1000 if enough else None,
        busy=done.busy,
        late_ms=done.late * 1000,
    )


def goodput(points: list[Point]) -> Iterator[Bar]:
    """Of the default beside no retries, for each load and each kind of client."""
    by = {(each.load, each.side): each for each in points}
    for (load, name), ours in by.items():
        kind = name.removeprefix(LIBRARY.name)
        if kind not in {"", runs.in_threads(LIBRARY).name.removeprefix(LIBRARY.name)}:
            continue
        without, plain = by[load, NO_RETRIES.name + kind], by.get((load, PLAIN.name + kind))
        measured = _beside(ours, without)
        if plain is not None:
            measured += f" (plain pymongo: {_beside(plain, without)})"
        yield Bar(
            f"goodput at {load:g} times the capacity{kind}, from a cold start and warmed up",
            f"at least {GOODPUT:.0%} and {WARM:.0%} of that without retries",
            measured,
            ours.cold >= GOODPUT * without.cold and ours.goodput >= WARM * without.goodput,
        )


def random_rejections(sizes: Sizes, seed: int) -> Bar:
    without, *ours = [
        _failed(runs.rejected_at_random(sizes, side, seed).operations)
        for side in (NO_RETRIES, LIBRARY, runs.in_threads(LIBRARY))
    ]
    return Bar(
        f"{runs.AT_RANDOM:.0%} rejected at random, at half the capacity",
        "no errors",
        f"{ours[0]}, sync {ours[1]}; without retries {without}",
        not any(ours),
    )


def recovery(sizes: Sizes, seed: int) -> Bar:
    seconds = [
        runs.recovered_after(runs.pulse(sizes, side, seed), sizes)
        for side in (LIBRARY, runs.in_threads(LIBRARY))
    ]
    return Bar(
        f"normal after a pulse of {sizes.pulse[1]:g} s of twice the capacity",
        f"within {RECOVERY_S:g} s",
        f"{seconds[0]:.1f} s, sync {seconds[1]:.1f} s",
        max(seconds) <= RECOVERY_S,
    )


def attempts_when_rejected(sizes: Sizes, seed: int) -> Bar:
    done = runs.all_rejected(sizes, seed)
    window = _measured(sizes)
    attempts = done.attempts(*window) / len(done.due(*window))
    return Bar(
        "attempts of an operation when all are rejected, warmed up",
        f"at most {ATTEMPTS}",
        f"{attempts:.3f}; {len(done.requests) - len(done.operations)} retries in all",
        attempts <= ATTEMPTS,
    )


def errors_of_bursts(sizes: Sizes, seed: int, clients: int) -> Bar:
    """Each client with one operation, or few with many, of which nothing is demanded."""
    without, ours, within = [], [], []
    for each in range(seed, seed + sizes.bursts):
        once = runs.burst(sizes, NO_RETRIES, each, clients)
        without.append(_failed(once.operations))
        ours.append(_failed(runs.burst(sizes, LIBRARY, each, clients).operations))
        within.append(max((at for at, _ in once.requests), default=0.0))
    fewer = fewer_errors(sum(without), sum(ours))
    each_burst = ", ".join(f"{a} to {b}" for a, b in zip(without, ours, strict=True))
    one_each = clients == sizes.burst_operations
    return Bar(
        f"errors of a burst of {sizes.burst_operations} operations of {clients} clients, "
        f"{runs.RETRIES} retries",
        f"down by at least {FEWER_ERRORS:.0%}" if one_each else "measured",
        f"{fewer:.1%}: {each_burst}; {sizes.slower:g} times slower, "
        f"the last arrived after {max(within) * 1000:.0f} ms",
        fewer >= FEWER_ERRORS if one_each else None,
    )


def fewer_errors(without: int, ours: int) -> float:
    """The part of them that is gone; where there were none, all are as long as none came."""
    return 1 - ours / without if without else float(not ours)


def _beside(one: Point, other: Point) -> str:
    cold, warm = (
        f"{ours / theirs:.1%}" if theirs else "-"
        for ours, theirs in ((one.cold, other.cold), (one.goodput, other.goodput))
    )
    return f"{cold} and {warm}"


def _measured(sizes: Sizes) -> tuple[float, float]:
    return sizes.warm_up, sizes.warm_up + sizes.measured


def _failed(operations: list[Operation]) -> int:
    return sum(each.how != OK for each in operations)
