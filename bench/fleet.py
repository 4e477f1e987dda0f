"""A fleet of clients against a server with a limit, in virtual time, with the library's own rules.

    python bench/fleet.py [--seed N] [--json FILE] [--quick] [--candidates]

The rules, back-offs and budgets are those of the library; server, network and clock are arithmetic.
So ten thousand clients fit into one process, and the same seed makes the same numbers on every
machine. ``bench/overload.py`` measures eight clients on a real server. Takes a minute.
``--candidates`` compares other sizes of the default budget, which is how its numbers were chosen.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overload_runs import QUEUE_S, REJECTION, TIMEOUT_MS, arrivals
from overload_server import Capacity

from pymongo_resilience.clock import Clock, Deadline
from pymongo_resilience.rules import backoff
from pymongo_resilience.rules.budget import UNLIMITED, RatioBudget, RetryBudget, TokenBucket
from pymongo_resilience.rules.failure import (
    RETRYABLE,
    SYSTEM_OVERLOADED,
    Failure,
    RetryReason,
    Stage,
)
from pymongo_resilience.rules.retry_rules import Retry, RetryRules
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import FastFail

RATE = 100.0
"""Requests per second that the server can do."""
TIMEOUT_S = TIMEOUT_MS / 1000
SLOW_S = 0.5
"""An operation that takes longer is not as it was before the load."""
NEW_S = 0.01
"""How long clients have been there when the load rises: most of them have sent nothing."""
TRIP_S = 0.001
"""What an answer takes that costs the server nothing."""
SERVER = "server:27017"
OVERLOADED = Failure(
    RuntimeError(),
    Stage.ANSWERED,
    RetryReason.OVERLOADED,
    labels=frozenset({SYSTEM_OVERLOADED, RETRYABLE}),
    server=SERVER,
)
NOT_PRIMARY = Failure(RuntimeError(), Stage.ANSWERED, RetryReason.NOT_PRIMARY)
LOST = Failure(RuntimeError(), Stage.IN_FLIGHT, RetryReason.SOCKET_CLOSED_WHILE_IN_FLIGHT)


@dataclass(frozen=True)
class Policy:
    """How clients repeat."""

    name: str
    retries: int
    budget: Callable[[Clock], RetryBudget] | None = None


POLICIES = (
    Policy("no retries", 0),
    Policy("two retries", 2),
    Policy("five retries, off", 5),
    Policy("five retries, tokens", 5, lambda _: TokenBucket()),
    Policy("five retries, ratio", 5, RatioBudget),
)
BASE, OURS = (POLICIES[at].name for at in (0, -1))


def candidates() -> Iterator[Policy]:
    yield POLICIES[0]
    for sizes in itertools.product((6, 10, 20), (0, 10, 20), (0.1, 0.2)):
        name = ", ".join(map(str, sizes))
        yield Policy(name, 5, lambda clock, sizes=sizes: RatioBudget(clock, *sizes))


@dataclass(frozen=True)
class Case:
    """What happens to a fleet. Seconds, and times of the server's capacity."""

    name: str
    clients: int
    phases: tuple[tuple[float, float], ...]
    """How long, and how much is offered."""
    rejected: float = 0.0
    """Part of the attempts that is rejected at random, whatever the load."""
    election: tuple[float, float] | None = None
    """From when until when there is no primary."""
    loses: bool = False
    """In place of rejecting, the server closes the connection, at the same cost."""
    rate: float = RATE
    queue_s: float = QUEUE_S
    rejection: float = REJECTION
    timeout: float | None = TIMEOUT_S


@dataclass(frozen=True)
class Outcome:
    """What became of it."""

    case: str
    policy: str
    clients: int
    load: float
    """The highest, in times of the capacity."""
    seconds: float
    """For how long it is that."""
    rejection: float
    """What a rejection costs the server, as a part of a request."""
    operations: int
    goodput: float
    """Successes within the phases, as a part of the capacity."""
    attempts: float
    """For each operation."""
    errors: int
    normal_after: float
    """Seconds from the end of the second phase, or of the election, until the last operation is due
    that fails, or needs half a second."""


class _Clock(Clock):
    """Stands wherever the next event is."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class _Call:
    __slots__ = ("budget", "due", "operation", "strategy")

    def __init__(self, due: float, strategy: FastFail, budget: RetryBudget) -> None:
        self.due = due
        self.strategy = strategy
        self.budget = budget
        self.operation: RetryState | None = None


def simulate(case: Case, policy: Policy, seed: int) -> Outcome:
    """One run. The same arrivals for every policy."""
    rng = random.Random(seed)  # noqa: S311 - times, no secrets
    clock = _Clock()
    rules = RetryRules(max_retries=policy.retries, random=random.Random(seed + 1).random)  # noqa: S311
    jitter = random.Random(seed + 3).random  # noqa: S311
    strategy = FastFail(lambda attempt: backoff.exponential(attempt, jitter))
    chance = random.Random(seed + 2)  # noqa: S311
    server = Capacity(case.rate, case.rate * case.queue_s, case.rejection)
    budgets = [
        UNLIMITED if policy.budget is None else policy.budget(clock) for _ in range(case.clients)
    ]
    phases = [(seconds, load * case.rate) for seconds, load in case.phases]
    number = itertools.count()
    events: list[tuple[float, int, Failure | bool | None, _Call]] = [
        (due, next(number), None, _Call(due, strategy, of_client))
        for due, of_client in zip(arrivals(phases, rng), itertools.cycle(budgets), strict=False)
    ]
    operations = len(events)
    heapq.heapify(events)
    attempts = 0
    done: list[tuple[_Call, float, bool]] = []

    def attempt(now: float) -> tuple[float, Failure | bool]:
        if case.election is not None and case.election[0] <= now < case.election[1]:
            return now + TRIP_S, NOT_PRIMARY
        if case.rejected and chance.random() < case.rejected:
            return now + TRIP_S, OVERLOADED
        admitted, at = server.receive(now)
        return at, admitted or (LOST if case.loses else OVERLOADED)

    while events:
        clock.time, _, answer, call = heapq.heappop(events)
        if answer is None:
            attempts += 1
            at, result = attempt(clock.time)
            heapq.heappush(events, (at, next(number), result, call))
        elif isinstance(answer, Failure):
            delay = _decide(rules, call, answer, clock, case.timeout)
            if delay is None:
                done.append((call, clock.time, False))
            else:
                heapq.heappush(events, (clock.time + delay, next(number), None, call))
        else:
            state = call.operation
            rejections = 0 if state is None else state.rejections
            call.budget.succeeded(retried=state is not None, rejections=rejections)
            in_time = case.timeout is None or clock.time - call.due <= case.timeout
            done.append((call, clock.time, in_time))
    end = sum(seconds for seconds, _ in case.phases)
    good = sum(well and ended < end for _, ended, well in done)
    over = case.election[1] if case.election is not None else sum(s for s, _ in case.phases[:2])
    failing = [
        call.due - over
        for call, ended, well in done
        if call.due > over and (not well or ended - call.due > SLOW_S)
    ]
    return Outcome(
        case.name,
        policy.name,
        case.clients,
        max(load for _, load in case.phases),
        max(case.phases, key=lambda phase: phase[1])[0],
        case.rejection,
        operations,
        good / (end * case.rate),
        attempts / operations,
        sum(not well for _, _, well in done),
        max(failing, default=0.0),
    )


def _decide(
    rules: RetryRules, call: _Call, failure: Failure, clock: _Clock, timeout: float | None
) -> float | None:
    """Seconds until the next attempt; None where there is none. As the executor does it."""
    operation = call.operation
    if operation is None:
        deadline = None
        if timeout is not None:
            deadline = Deadline(clock, call.due + timeout, timeout)
        operation = call.operation = RetryState(
            name="find",
            namespace="bench.coll",
            kind=Kind.READ,
            strategy=call.strategy,
            retries_enabled=rules.max_retries > 0,
            deadline=deadline,
            budget=call.budget,
        )
    granted = call.budget.failed(
        failure, retried=operation.attempts > 0, rejections=operation.rejections, began=call.due
    )
    operation.in_grace = operation.in_grace or granted
    if failure.rejected and operation.rejections == 0:
        operation.rejected_since = clock.now()
    operation.count(failure)
    verdict = rules.decide(operation, failure)
    if isinstance(verdict, Retry) and call.budget.spend(failure):
        return verdict.delay
    return None


def cases(*, quick: bool = False) -> list[Case]:
    loads = (0.5, 0.9, 1.0, 1.2, 2.0, 5.0, 10.0)
    fleets = (1, 8, 100, 1_000, 10_000)
    if quick:
        loads, fleets = (0.5, 2.0), (8,)
    made = [Case("steady", clients, ((10.0, load),)) for clients in fleets for load in loads]
    made += [
        Case("pulse", 8, ((4.0, 0.5), (seconds, 2.0), (6.0, 0.5)))
        for seconds in ((1.0,) if quick else (0.5, 1.0, 3.0, 10.0))
    ]
    # The clients are new: of a thousand, each sends one operation in the five seconds.
    made += [
        Case("recovery", clients, ((NEW_S, 0.5), (5.0, load), (8.0, 0.5)), rejection=rejection)
        for rejection in ((0.0,) if quick else (0.0, REJECTION))
        for load in ((2.0,) if quick else (2.0, 5.0))
        for clients in fleets
    ]
    made += [Case("5 % rejected", 8, ((60.0, 0.5),), rejected=0.05)]
    if not quick:
        made += [Case("10 % rejected", 8, ((60.0, 0.5),), rejected=0.10)]
    made += [
        Case("election of 3 s", clients, ((20.0, 0.2),), election=(5.0, 8.0))
        for clients in ((8,) if quick else (8, 100))
    ]
    made += [
        Case("connections lost above the capacity", clients, ((10.0, 1.2),), loses=True)
        for clients in ((8,) if quick else (8, 100))
    ]
    # 512 operations within 50 ms, a server of 400/s with room for 100.
    shot = ((0.05, 512 / 0.05 / 400),)
    made += [
        Case("burst", clients, shot, rate=400.0, queue_s=0.25, rejection=0.0, timeout=None)
        for clients in (512, 8)
    ]
    return made


def fleet(
    *, quick: bool = False, seed: int = 8, policies: tuple[Policy, ...] = POLICIES
) -> dict[str, Any]:
    found = [simulate(case, policy, seed) for case in cases(quick=quick) for policy in policies]
    return {"seed": seed, "outcomes": [asdict(each) for each in found]}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """For a terminal."""
    for each in found["outcomes"]:
        yield (
            f"{each['case']:16} {each['clients']:6} clients {each['load']:5.3g}x  "
            f"{each['policy']:21} goodput {each['goodput']:6.1%}  attempts {each['attempts']:4.2f} "
            f"errors {each['errors']:6} of {each['operations']:6}  "
            f"normal after {each['normal_after']:4.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write what was found")
    parser.add_argument("--quick", action="store_true", help="a few cases only")
    parser.add_argument("--candidates", action="store_true", help="other sizes of the budget")
    given = parser.parse_args()
    policies = tuple(candidates()) if given.candidates else POLICIES
    found = fleet(quick=given.quick, seed=given.seed, policies=policies)
    for line in lines(found):
        print(line)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
