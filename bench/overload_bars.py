"""The bars of the benchmark of overload: what is measured, and what it must be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import overload_runs as runs
from overload_clients import OK, Side
from overload_runs import LIBRARY, NO_RETRIES, PLAIN, Sizes

GOODPUT = 0.95
RECOVERY_S = 2.0
ATTEMPTS = 1.1
FEWER_ERRORS = 0.99
TWICE = 2.0
SPENT = 5.0
"""A bucket with fewer tokens is spent: these are what successes have just paid in."""


@dataclass(frozen=True)
class Point:
    """One side under one load, measured after the warm-up."""

    load: float
    side: str
    goodput: float
    """Successes, as a part of the capacity."""
    attempts: float
    """For each operation; counted by the server."""
    errors: float
    """Part of the operations."""
    p99_ms: float | None
    """Of those that succeeded; None where they are too few."""
    tokens: float | None
    """The most that any client had left when measuring began; None without budgets."""
    busy: float
    """The part of a core that the busiest process of clients took."""
    late_ms: float
    """What the machine was late to begin operations or to reply: 99th percentile."""
    retries: int
    """From the beginning to the end."""


@dataclass(frozen=True)
class Bar:
    what: str
    bar: str
    value: float
    measured: str
    met: bool
    facts: dict[str, Any] = field(default_factory=dict)


def point(sizes: Sizes, load: float, side: Side, seed: int) -> Point:
    done = runs.steady(sizes, side, load, seed)
    window = _measured(sizes)
    due, succeeded = done.due(*window), done.succeeded(*window)
    enough = len(succeeded) >= runs.FEWEST
    return Point(
        load=load,
        side=side.name,
        goodput=len(succeeded) / sizes.measured / sizes.capacity,
        attempts=done.attempts(*window) / len(due),
        errors=_failed(due) / len(due),
        p99_ms=runs.percentile(succeeded, 0.99) * 1000 if enough else None,
        tokens=done.tokens,
        busy=done.busy,
        late_ms=done.late * 1000,
        retries=done.retries,
    )


def goodput_at_twice(points: list[Point], sizes: Sizes) -> Bar:
    at_twice = {each.side: each for each in points if each.load == TWICE}
    without = at_twice[NO_RETRIES.name].goodput
    ours = at_twice[runs.adaptive(sizes).name]
    ratio = ours.goodput / without
    measured = f"{ratio:.1%}, {_left(ours.tokens)}"
    if PLAIN.name in at_twice:
        measured += f" (plain pymongo: {at_twice[PLAIN.name].goodput / without:.1%})"
    return Bar(
        "goodput at twice the capacity, adaptive, budget spent",
        f"at least {GOODPUT:.0%} of that without retries",
        ratio,
        measured,
        ratio >= GOODPUT and _is_spent(ours.tokens),
    )


def recovery(sizes: Sizes, seed: int) -> Bar:
    done = runs.pulse(sizes, runs.adaptive(sizes), seed)
    seconds = runs.recovered_after(done, sizes)
    return Bar(
        "normal after a pulse of twice the capacity, adaptive",
        f"within {RECOVERY_S:g} s",
        seconds,
        f"{seconds:.1f} s",
        seconds <= RECOVERY_S,
    )


def attempts_when_rejected(sizes: Sizes, seed: int) -> Bar:
    done = runs.all_rejected(sizes, seed)
    window = _measured(sizes)
    attempts = done.attempts(*window) / len(done.due(*window))
    return Bar(
        "attempts of an operation when all are rejected, adaptive, budget spent",
        f"at most {ATTEMPTS}",
        attempts,
        f"{attempts:.3f}, {_left(done.tokens)}; {done.retries} retries in all with "
        f"{sizes.tokens} tokens",
        attempts <= ATTEMPTS and _is_spent(done.tokens),
        {"retries": done.retries, "tokens_left": done.tokens},
    )


def errors_of_bursts(sizes: Sizes, seed: int) -> Bar:
    without, ours, within = [], [], []
    for each in range(seed, seed + sizes.bursts):
        once = runs.burst(sizes, NO_RETRIES, each)
        without.append(_failed(once.operations))
        ours.append(_failed(runs.burst(sizes, LIBRARY, each).operations))
        within.append(max(at for at, _ in once.requests))
    fewer = 1 - sum(ours) / sum(without)
    each_burst = ", ".join(f"{a} to {b}" for a, b in zip(without, ours, strict=True))
    return Bar(
        f"errors of a burst of {sizes.burst_clients} clients, {runs.RETRIES} retries",
        f"down by at least {FEWER_ERRORS:.0%}",
        fewer,
        f"{fewer:.1%}: {each_burst}; {sizes.slower:g} times slower, "
        f"the last arrived after {max(within) * 1000:.0f} ms",
        fewer >= FEWER_ERRORS,
        {"without_retries": without, "with_retries": ours, "within_s": within},
    )


def _measured(sizes: Sizes) -> tuple[float, float]:
    return sizes.warm_up, sizes.warm_up + sizes.measured


def _failed(operations: list[runs.Operation]) -> int:
    return sum(each.how != OK for each in operations)


def _is_spent(tokens: float | None) -> bool:
    return tokens is not None and tokens < SPENT


def _left(tokens: float | None) -> str:
    return f"at most {tokens} tokens left to a client"
