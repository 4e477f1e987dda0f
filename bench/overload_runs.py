"""What the benchmark of overload runs, and what it reads off what clients and server have seen."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from overload_clients import OK, Operation, Result, Side, Work, run
from overload_server import Capacity, LimitedServer, Request

REJECTION = 0.1
"""What a rejection costs the server, as a part of a request."""
QUEUE_S = 0.25
"""How long the server lets requests wait before it turns more of them away."""
TIMEOUT_MS = 5000
RETRIES = 5
ONCE = {"retryReads": False}
FEWEST = 100
"""Operations from which on a 99th percentile is shown."""
WINDOW_S = 0.5
LONGER_S = 0.1
MOST_TRIES = 4

NO_RETRIES = Side("no retries", options=ONCE)
PLAIN = Side("plain pymongo")
LIBRARY = Side("this library", config={})
SIDES = (NO_RETRIES, PLAIN, LIBRARY)
AT_RANDOM = 0.05


@dataclass(frozen=True)
class Sizes:
    """How long and how large; seconds, and requests per second."""

    capacity: float = 100.0
    loads: tuple[float, ...] = (1.0, 2.0, 5.0)
    processes: int = 2
    clients: int = 4
    """In each process."""
    warm_up: float = 4.0
    cold: float = 10.0
    """The first seconds, for what is said of a cold start."""
    measured: float = 8.0
    pulse: tuple[float, float, float] = (4.0, 10.0, 6.0)
    """Before it, the pulse, and after it."""
    bursts: int = 5
    burst_operations: int = 512
    burst_s: float = 0.05
    burst_rate: float = 400.0
    burst_bucket: float = 100.0
    slower: float = 4.0
    """So many times slower is a burst than that, its server and its back-off: a machine has to
    begin that many operations within ``burst_s``."""
    late: float = QUEUE_S
    """A run in which the machine was later, so that the server had nothing to do, is measured once
    more."""
    closed_loop: float = 3.0
    every_side: bool = True


QUICK = Sizes(
    loads=(2.0,),
    processes=1,
    clients=2,
    warm_up=0.7,
    cold=1.0,
    measured=0.5,
    pulse=(0.5, 0.5, 0.5),
    bursts=1,
    burst_operations=32,
    burst_bucket=6.0,
    slower=1.0,
    late=float("inf"),
    closed_loop=0.3,
    every_side=False,
)


@dataclass(frozen=True)
class Run:
    """One side against one server. Times in seconds from the start."""

    operations: list[Operation]
    requests: list[Request]
    busy: float
    """The part of a core that the busiest process of clients took."""
    late: float
    """Seconds by which the machine was late to begin an operation, or to reply: the 99th
    percentile of one or the other."""

    def due(self, begin: float, end: float) -> list[Operation]:
        return [each for each in self.operations if begin <= each.due < end]

    def attempts(self, begin: float, end: float) -> int:
        return sum(begin <= at < end for at, _ in self.requests)

    def succeeded(self, begin: float, end: float) -> list[float]:
        """The times of those that ended well in between."""
        return sorted(
            each.ended - each.due
            for each in self.operations
            if each.how == OK and begin <= each.ended < end
        )


def percentile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def in_threads(side: Side) -> Side:
    return replace(side, name=f"{side.name}, sync", sync=True)


def sides(sizes: Sizes) -> list[Side]:
    if not sizes.every_side:
        return [NO_RETRIES, LIBRARY, in_threads(NO_RETRIES), in_threads(LIBRARY)]
    return [*SIDES, *map(in_threads, SIDES)]


def arrivals(phases: list[tuple[float, float]], rng: random.Random) -> list[float]:
    """Of a Poisson process whose rate changes; ``phases`` are seconds and rates."""
    due, begin = [], 0.0
    for seconds, rate in phases:
        at = begin
        while (at := at + rng.expovariate(rate)) < begin + seconds:
            due.append(at)
        begin += seconds
    return due


def undisturbed(sizes: Sizes, capacity: Capacity, works: list[Work]) -> Run:
    """The first run for which the machine had time, or the one for which it had most."""
    tries: list[Run] = []
    while not tries or (tries[-1].late > sizes.late and len(tries) < MOST_TRIES):
        tries.append(perform(replace(capacity), works))
    return min(tries, key=lambda each: each.late)


def perform(capacity: Capacity, works: list[Work]) -> Run:
    with LimitedServer(capacity) as server:
        for work in works:
            work.uri = server.uri
        start, results = run(works)
    return _run(start, results, server)


def _run(start: float, results: list[Result], server: LimitedServer) -> Run:
    operations = [each for result in results for each in result.operations]
    begun = sorted(each.begun - each.due for each in operations)
    return Run(
        operations=operations,
        requests=[(at - start, admitted) for at, admitted in server.requests],
        busy=max(result.busy for result in results),
        late=max(percentile(some, 0.99) for some in (begun, sorted(server.late))),
    )


def under_load(
    sizes: Sizes, side: Side, phases: list[tuple[float, float]], seed: int, capacity: Capacity
) -> Run:
    """Every side with the same arrivals."""
    works = []
    for index in range(sizes.processes):
        rng = random.Random(f"{seed} {index}")  # noqa: S311 - times of arrival, no secrets
        due = arrivals([(each, rate / sizes.processes) for each, rate in phases], rng)
        works.append(Work(side, sizes.clients, due, seed + index, TIMEOUT_MS))
    return undisturbed(sizes, capacity, works)


def limited(sizes: Sizes) -> Capacity:
    return Capacity(sizes.capacity, sizes.capacity * QUEUE_S, REJECTION)


def steady(sizes: Sizes, side: Side, load: float, seed: int) -> Run:
    rate = load * sizes.capacity
    phases = [(sizes.warm_up, rate), (sizes.measured, rate)]
    return under_load(sizes, side, phases, seed, limited(sizes))


def pulse(sizes: Sizes, side: Side, seed: int) -> Run:
    """Half the capacity, twice the capacity, half of it again."""
    rates = (sizes.capacity * load for load in (0.5, 2.0, 0.5))
    phases = list(zip(sizes.pulse, rates, strict=True))
    return under_load(sizes, side, phases, seed, limited(sizes))


def all_rejected(sizes: Sizes, seed: int) -> Run:
    phases = [(sizes.warm_up, sizes.capacity), (sizes.measured, sizes.capacity)]
    nothing = Capacity(sizes.capacity, burst=0)
    return under_load(sizes, LIBRARY, phases, seed, nothing)


def rejected_at_random(sizes: Sizes, side: Side, seed: int) -> Run:
    """At half the capacity."""
    phases = [(sizes.warm_up + sizes.measured, sizes.capacity / 2)]
    return under_load(sizes, side, phases, seed, replace(limited(sizes), at_random=AT_RANDOM))


def burst(sizes: Sizes, side: Side, seed: int, clients: int) -> Run:
    """All operations begin within ``burst_s``, in turn from each of the clients."""
    slower = sizes.slower
    if side.config is not None:
        waits = {"base_backoff_ms": round(100 * slower), "max_backoff_ms": round(10_000 * slower)}
        side = replace(side, config=side.config | waits)
    works = []
    each = sizes.burst_operations // sizes.processes
    for index in range(sizes.processes):
        rng = random.Random(f"{seed} {index}")  # noqa: S311 - times of arrival, no secrets
        due = sorted(rng.uniform(0, sizes.burst_s * slower) for _ in range(each))
        works.append(Work(side, clients // sizes.processes, due, seed + index))
    return undisturbed(sizes, Capacity(sizes.burst_rate / slower, sizes.burst_bucket), works)


def closed_loop(sizes: Sizes) -> float:
    """Operations per second that these clients and this server could do on this machine."""
    works = [
        Work(NO_RETRIES, sizes.clients, [], 0, closed_loop_s=sizes.closed_loop)
        for _ in range(sizes.processes)
    ]
    done = perform(Capacity(rate=1e9, burst=1e9), works)
    return len(done.succeeded(0, sizes.closed_loop)) / sizes.closed_loop


def recovered_after(done: Run, sizes: Sizes) -> float:
    """Seconds from the end of the pulse to the end of the last half-second in which an operation
    was due that failed, or half of them took 100 ms longer than before the pulse: in the pulse
    they wait for 250 ms, and less than half of that may be the machine's."""
    before, during, after = sizes.pulse
    usual = percentile(done.succeeded(before / 4, before), 0.5)
    recovered, at = 0.0, 0.0
    while at + WINDOW_S <= after:
        begin = before + during + at
        some = done.due(begin, begin + WINDOW_S)
        times = sorted(each.ended - each.due for each in some)
        at += WINDOW_S
        if any(each.how != OK for each in some) or percentile(times, 0.5) > usual + LONGER_S:
            recovered = at
    return recovered
