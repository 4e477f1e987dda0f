"""What the benchmark of overload runs, and what it reads off what clients and server have seen."""

from __future__ import annotations

import copy
import random
import threading
import time
from dataclasses import dataclass, replace

from overload_clients import OK, Operation, Result, Side, Work, run
from overload_server import (
    ApplicationsRejected,
    Capacity,
    EachRejected,
    Limit,
    LimitedServer,
    Request,
    Tokens,
)

REJECTION = 0.1
"""What a rejection costs the server, as a part of a request."""
QUEUE_S = 0.25
"""How long the server lets requests wait before it turns more of them away."""
TIMEOUT_MS = 5000
RETRIES = 5
ONCE = {"retryReads": False, "retryWrites": False}
FEWEST = 100
"""Operations from which on a 99th percentile is shown."""
PROBE_S = 0.05
"""After the overload; then each client sends one operation."""
WINDOW_S = 0.5
LONGER_S = 0.1
MOST_TRIES = 4
DOWN_S = 0.05
"""Seconds for which a restarting server closes new connections."""

FLOOR = Side("no retries, handshakes right", options=ONCE, ignores_rejected_handshakes=True)
"""What all others are compared with: pymongo without retries, and without its fault about rejected
handshakes."""
NO_RETRIES = Side("no retries", options=ONCE)
PLAIN = Side("plain pymongo")
BARE = LIBRARY = Side("bare", config={})
TIMEOUT = Side("timeout", config={"timeout_ms": TIMEOUT_MS})
TOKENS = Side("timeout, tokens", config={"timeout_ms": TIMEOUT_MS, "retry_budget": "tokens"})
OURS = (BARE, TIMEOUT, TOKENS)
SIDES = (FLOOR, NO_RETRIES, PLAIN, *OURS)
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
    restart: tuple[float, float] = (2.0, 4.0)
    """Before the restart, and after it."""
    bursts: int = 5
    burst_operations: int = 512
    at_once: tuple[int, ...] = (1, 8, 40, 80, 512)
    quiet_operations: int = 20
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
    restart=(0.3, 0.5),
    at_once=(8,),
    quiet_operations=2,
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
    own: list[Request]
    """What the driver sent by itself."""
    dialed: list[float]
    unknown: int
    """How often a server that was known became Unknown."""
    probes: list[Operation]
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
        return [FLOOR, BARE, in_threads(FLOOR), in_threads(BARE)]
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


def undisturbed(sizes: Sizes, limit: Limit, works: list[Work], lifted: float | None = None) -> Run:
    """The first run for which the machine had time, or the one for which it had most."""
    tries: list[Run] = []
    while not tries or (tries[-1].late > sizes.late and len(tries) < MOST_TRIES):
        tries.append(perform(copy.deepcopy(limit), works, lifted))
    return min(tries, key=lambda each: each.late)


def perform(
    limit: Limit,
    works: list[Work],
    lifted: float | None = None,
    restarted: float | None = None,
) -> Run:
    """Run the clients against a server with this limit.

    Args:
        limit: What the server admits.
        works: What each process of clients does.
        lifted: Seconds after which everything is admitted.
        restarted: Seconds after which the server restarts.
    """
    with LimitedServer(limit, login=works[0].timeout_ms is not None) as server:
        for work in works:
            work.uri = server.uri

        def begun(start: float) -> None:
            if lifted is not None:
                server.lift(start + lifted)
            if restarted is not None:
                seconds = start + restarted - time.monotonic()
                threading.Timer(seconds, server.restart, (DOWN_S,)).start()

        start, results = run(works, begun)
    return _run(start, results, server)


def _run(start: float, results: list[Result], server: LimitedServer) -> Run:
    operations = [each for result in results for each in result.operations]
    begun = sorted(each.begun - each.due for each in operations)
    log = server.log
    return Run(
        operations=operations,
        requests=[(at - start, admitted) for at, admitted in log.requests],
        own=[(at - start, admitted) for at, admitted in log.own],
        dialed=[at - start for at in log.dialed],
        unknown=sum(result.unknown for result in results),
        probes=[each for result in results for each in result.probes],
        busy=max(result.busy for result in results),
        late=max(percentile(some, 0.99) for some in (begun, sorted(log.late)) if some),
    )


def under_load(
    sizes: Sizes, side: Side, phases: list[tuple[float, float]], seed: int, limit: Limit
) -> Run:
    """Every side with the same arrivals; the limit ends with them."""
    works = []
    end = sum(seconds for seconds, _ in phases)
    for index in range(sizes.processes):
        rng = random.Random(f"{seed} {index}")  # noqa: S311 - times of arrival, no secrets
        due = arrivals([(each, rate / sizes.processes) for each, rate in phases], rng)
        probe_at = end + PROBE_S
        works.append(Work(side, sizes.clients, due, seed + index, TIMEOUT_MS, probe_at=probe_at))
    return undisturbed(sizes, limit, works, end)


def tokens(sizes: Sizes) -> Tokens:
    """MongoDB's own limiter: a burst of a second, and rejections cost nothing."""
    return Tokens(sizes.capacity, sizes.capacity)


def limited(sizes: Sizes) -> Capacity:
    return Capacity(sizes.capacity, sizes.capacity * QUEUE_S, REJECTION)


def steady(sizes: Sizes, side: Side, load: float, seed: int) -> Run:
    rate = load * sizes.capacity
    phases = [(sizes.warm_up, rate), (sizes.measured, rate)]
    return under_load(sizes, side, phases, seed, tokens(sizes))


def costly(sizes: Sizes, side: Side, load: float, seed: int) -> Run:
    """The same, on a server that pays for its rejections."""
    rate = load * sizes.capacity
    phases = [(sizes.warm_up, rate), (sizes.measured, rate)]
    return under_load(sizes, side, phases, seed, limited(sizes))


def blip(sizes: Sizes, side: Side, at_once: int, times: int) -> Run:
    """So many operations of one client at once, and each is rejected so often."""
    return undisturbed(sizes, EachRejected(times), [Work(side, 1, [0.0] * at_once, 0)])


def quiet(sizes: Sizes, side: Side, times: int) -> Run:
    """A client with four operations a second, each of which is rejected so often."""
    due = [number / 4 for number in range(sizes.quiet_operations)]
    return undisturbed(sizes, EachRejected(times), [Work(side, 1, due, 0)])


def burst_of_a_second(sizes: Sizes, side: Side, load: float, seed: int) -> Run:
    """A second of ``load``, between seconds of half the capacity, on the bucket of a second."""
    phases = [(1.0, sizes.capacity / 2), (1.0, sizes.capacity * load), (2.0, sizes.capacity / 2)]
    return under_load(sizes, side, phases, seed, tokens(sizes))


def pulse(sizes: Sizes, side: Side, seed: int) -> Run:
    """Half the capacity, twice the capacity, half of it again."""
    rates = (sizes.capacity * load for load in (0.5, 2.0, 0.5))
    phases = list(zip(sizes.pulse, rates, strict=True))
    return under_load(sizes, side, phases, seed, limited(sizes))


def restarted(sizes: Sizes, side: Side, load: float, seed: int) -> Run:
    """Restart the server in the middle of an overload that goes on."""
    before, after = sizes.restart
    works = []
    for index in range(sizes.processes):
        rng = random.Random(f"{seed} {index}")  # noqa: S311 - times of arrival, no secrets
        due = arrivals([(before + after, sizes.capacity * load / sizes.processes)], rng)
        works.append(Work(side, sizes.clients, due, seed + index, TIMEOUT_MS))
    return perform(tokens(sizes), works, restarted=before)


def all_rejected(sizes: Sizes, seed: int) -> Run:
    phases = [(sizes.warm_up, sizes.capacity), (sizes.measured, sizes.capacity)]
    return under_load(sizes, LIBRARY, phases, seed, ApplicationsRejected())


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
