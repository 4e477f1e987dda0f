"""The bars of the benchmark of overload: what is measured, and what it must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import overload_runs as runs
from overload_clients import OK, Operation
from overload_runs import BARE, FLOOR, LIBRARY, NO_RETRIES, OURS, PLAIN, TIMEOUT, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overload_clients import Side

COLD, WARM = {5.0: 0.92}, 0.98
"""By the load, of the first ten seconds; 95 % for those that are not there. And afterwards."""
OTHERS_COLD = 0.95
FIRST_MS = 100.0
RECOVERY_S = 1.0
ATTEMPTS = 1.1
RESTART_LOAD = 3.0
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
    unknown: int
    """How often a server became Unknown to a client, of as many as there are clients."""
    rejected_handshakes: int
    """Hellos and logins that the server rejected."""
    first_ms: float | None
    """Of one operation of each client, once the overload had ended: the longest; None where one
    failed."""
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
    first = [each.ended - each.due for each in done.probes if each.how == OK]
    return Point(
        load=load,
        side=side.name,
        cold=len(done.succeeded(0, sizes.cold)) / sizes.cold / sizes.capacity,
        goodput=len(succeeded) / sizes.measured / sizes.capacity,
        attempts=done.attempts(*window) / len(due),
        errors=_failed(due) / len(due),
        p99_ms=runs.percentile(succeeded, 0.99) * 1000 if enough else None,
        unknown=done.unknown,
        rejected_handshakes=sum(not admitted for _, admitted in done.own),
        first_ms=max(first) * 1000 if len(first) == len(done.probes) else None,
        busy=done.busy,
        late_ms=done.late * 1000,
    )


def goodput(points: list[Point]) -> Iterator[Bar]:
    """Of each setup beside the floor, for each load and each kind of client."""
    by = {(each.load, each.side): each for each in points}
    for (load, name), ours in by.items():
        kind = ", sync" if name.endswith(", sync") else ""
        if name.removesuffix(kind) not in {each.name for each in OURS}:
            continue
        floor, plain = by[load, FLOOR.name + kind], by.get((load, PLAIN.name + kind))
        measured = _beside(ours, floor)
        if plain is not None:
            measured += f" (plain pymongo: {_beside(plain, floor)})"
        cold = COLD.get(load, OTHERS_COLD)
        yield Bar(
            f"{name}: goodput at {load:g} times the rate, from a cold start and warmed up",
            f"at least {cold:.0%} and {WARM:.0%} of the floor",
            measured,
            ours.cold >= cold * floor.cold and ours.goodput >= WARM * floor.goodput,
        )


def steadiness(points: list[Point]) -> Iterator[Bar]:
    """What must hold in every run of ours."""
    names = {each.name for each in OURS} | {runs.in_threads(each).name for each in OURS}
    ours = [each for each in points if each.side in names]
    plain = [each for each in points if each.side.startswith(PLAIN.name)]
    unknown = sum(each.unknown for each in ours)
    yield Bar(
        "servers that become Unknown, in all runs",
        "none",
        f"{unknown} (plain pymongo: {sum(each.unknown for each in plain)})",
        unknown == 0,
    )
    first = [each.first_ms for each in ours]
    slowest = None if None in first else max(each for each in first if each is not None)
    yield Bar(
        "the first operation of each client after the overload",
        f"within {FIRST_MS:g} ms",
        f"{'one failed' if slowest is None else f'{slowest:.0f} ms'} "
        f"(plain pymongo: {_slowest(plain)})",
        slowest is not None and slowest < FIRST_MS,
    )
    p99 = max((each.p99_ms for each in ours if each.p99_ms is not None), default=0.0)
    yield Bar(
        "p99 of operations that succeed",
        f"below the deadline of {runs.TIMEOUT_MS:g} ms",
        f"at most {p99:.0f} ms",
        p99 < runs.TIMEOUT_MS,
    )


def _slowest(points: list[Point]) -> str:
    failed = sum(each.first_ms is None for each in points)
    there = [each.first_ms for each in points if each.first_ms is not None]
    slowest = f"{max(there):.0f} ms" if there else "-"
    return slowest + (f", failed in {failed} runs of {len(points)}" if failed else "")


def blips(sizes: Sizes, seed: int) -> Iterator[Bar]:
    """No errors where plain pymongo has none."""
    for asynchronous in (True, False):
        compared = [
            each if asynchronous else runs.in_threads(each) for each in (PLAIN, BARE, TIMEOUT)
        ]
        kind = "" if asynchronous else ", sync"
        for times in (1, 2):
            for at_once in sizes.at_once:
                yield _no_more_errors(
                    f"{at_once} operations at once, each rejected {times} times{kind}",
                    [
                        _failed(runs.blip(sizes, each, at_once, times).operations)
                        for each in compared
                    ],
                )
            yield _no_more_errors(
                f"a quiet client, each operation rejected {times} times{kind}",
                [_failed(runs.quiet(sizes, each, times).operations) for each in compared],
            )
        for load in (1.5, 3.0):
            yield _no_more_errors(
                f"a second of {load:g} times the rate{kind}",
                [
                    _failed(runs.burst_of_a_second(sizes, each, load, seed).operations)
                    for each in compared
                ],
            )


def _no_more_errors(what: str, errors: list[int]) -> Bar:
    plain, *ours = errors
    return Bar(
        what,
        "no errors where plain pymongo has none",
        f"plain {plain}, bare {ours[0]}, timeout {ours[1]} errors",
        max(ours) == 0 if plain == 0 else None,
    )


def costly(sizes: Sizes, seed: int) -> Iterator[Bar]:
    """On a server that pays a tenth of a request for each rejection, as one that is out of CPU."""
    window = _measured(sizes)
    for load in (each for each in sizes.loads if each > 1):
        found = []
        for side in (FLOOR, PLAIN, BARE, TIMEOUT):
            done = runs.costly(sizes, side, load, seed)
            found.append((len(done.succeeded(0, sizes.cold)), len(done.succeeded(*window))))
        floor, plain, *ours = found
        cold = COLD.get(load, OTHERS_COLD)
        yield Bar(
            f"goodput at {load:g} times what a server can do that pays for rejections",
            f"at least {cold:.0%} and {WARM:.0%} of the floor",
            "; ".join(
                f"{name} {part[0] / max(1, floor[0]):.1%} and {part[1] / max(1, floor[1]):.1%}"
                for name, part in zip(("plain", "bare", "timeout"), (plain, *ours), strict=True)
            ),
            all(a >= cold * floor[0] and b >= WARM * floor[1] for a, b in ours),
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


def restarts(sizes: Sizes, seed: int) -> Iterator[Bar]:
    """Count the connections to a server that restarts while it is overloaded.

    After the first rejected connection, plain pymongo sends the server nothing for up to ten
    seconds, so it connects rarely and completes little.
    """
    begin = sizes.restart[0]
    end = sum(sizes.restart)
    for asynchronous in (True, False):
        dials, found = [], []
        for side in (PLAIN, BARE, TIMEOUT):
            each = side if asynchronous else runs.in_threads(side)
            done = runs.restarted(sizes, each, RESTART_LOAD, seed)
            dials.append(sum(begin <= at < end for at in done.dialed))
            succeeded = len(done.succeeded(begin, end))
            found.append(f"{side.name} {dials[-1]} ({succeeded} operations succeed)")
        yield Bar(
            f"connections to a server that restarts at {RESTART_LOAD:g} times its rate"
            + ("" if asynchronous else ", sync"),
            "no more than plain pymongo",
            ", ".join(found),
            max(dials[1:]) <= dials[0],
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
