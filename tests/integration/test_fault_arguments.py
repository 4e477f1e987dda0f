"""A wrong argument is one sentence: what it is called, its value, and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.testbed.control import KINDS
from pymongo_resilience_instrumentation.tools.testbed.fault_catalog import NETWORK

from pymongo_resilience.testbed import (
    BlackHole,
    Corrupt,
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    EmbeddedServer,
    Fail,
    FailWriteConcern,
    Latency,
    NotPrimary,
    Overload,
    PoolClearingStorm,
    RateLimit,
    Refuse,
    ReplicaSet,
    Restart,
    RollingRestart,
    Scenario,
    ShardedCluster,
    SkewedClock,
    Slow,
    Standalone,
)

Make = Callable[[Any], object]

NO_NUMBERS: tuple[Any, ...] = (math.nan, math.inf, -math.inf, "1", True, [1])
POSITIVE: dict[str, list[Make]] = {
    "seconds": [
        Refuse,
        BlackHole,
        Latency,
        Slow,
        lambda value: Scenario.random(1, value, NETWORK),
    ],
    "every": [
        lambda value: PoolClearingStorm(every=value),
        lambda value: Scenario.random(1, 1.0, NETWORK, every=value),
    ],
    "gap": [Election, lambda value: Restart(gap=value), lambda value: RollingRestart(gap=value)],
    "downtime": [Restart, RollingRestart],
    "pause": [lambda value: RollingRestart(pause=value)],
    "rate": [RateLimit],
    "startup_timeout": [lambda value: EmbeddedServer(startup_timeout=value)],
}
# Those that may be left out: there None is allowed.
POSITIVE_OR_NONE: dict[str, list[Make]] = {
    "base_backoff": [
        lambda value: Overload(base_backoff=value),
        lambda value: RateLimit(1, base_backoff=value),
    ],
    "seconds": [lambda value: RateLimit(1, seconds=value)],
    "burst": [lambda value: RateLimit(1, value)],
}
NOT_NEGATIVE: dict[str, list[Make]] = {
    "jitter": [lambda value: Latency(1, value)],
    "seconds": [lambda value: Scenario().after(value, Refuse, 1.0)],
}
COUNTS: dict[str, list[Make]] = {
    "times": [
        lambda value: CutBefore("insert", value),
        lambda value: CutAfter("insert", value),
        lambda value: NotPrimary("insert", value),
        lambda value: Overload("insert", value),
        lambda value: Fail("insert", value, code=6),
        lambda value: FailWriteConcern("insert", value, code=64),
        lambda value: Corrupt(lambda reply: reply.raw, "insert", value),
        CutAtHandshake,
        PoolClearingStorm,
    ],
    "code": [
        lambda value: Fail(code=value),
        lambda value: FailWriteConcern(code=value),
    ],
}
MEMBERS: list[Make] = [
    lambda value: ReplicaSet(members=value),
    lambda value: ShardedCluster(members=value),
    lambda value: Standalone(members=value),
]
PORTS: list[Make] = [lambda value: ReplicaSet(port=value), lambda value: Standalone(port=value)]
SEEDS: list[Make] = [
    lambda value: Latency(1, seed=value),
    lambda value: Scenario.random(value, 1.0, NETWORK),
]


def cases(makes: dict[str, list[Make]], values: tuple[Any, ...]) -> list[Any]:
    return [
        pytest.param(make, name, value, id=f"{name}{number}-{value!r}")
        for name, several in makes.items()
        for number, make in enumerate(several)
        for value in values
    ]


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        *cases(POSITIVE, (0, -1, -0.5, None, *NO_NUMBERS)),
        *cases(POSITIVE_OR_NONE, (0, -1, *NO_NUMBERS)),
        *cases(NOT_NEGATIVE, (-1, -0.001, None, *NO_NUMBERS)),
        *cases(COUNTS, (0, -1, 1.5, None, *NO_NUMBERS)),
        *cases({"members": MEMBERS}, (0, -1, 1.5, *NO_NUMBERS)),
        *cases({"port": PORTS}, (0, -1, 65_536, 27_017.0, *NO_NUMBERS)),
        *cases({"port": [lambda value: ReplicaSet(port=value)]}, (65_534, 65_535)),
        *cases({"members": [lambda value: Standalone(members=value)]}, (2,)),
        *cases({"seed": SEEDS}, (-1, 1.5, None, "1", True)),
        *cases({"seconds": [SkewedClock]}, (None, 1e30, *NO_NUMBERS)),
        *cases(
            {
                "command": [
                    CutBefore,
                    CutAfter,
                    NotPrimary,
                    Overload,
                    lambda value: Fail(value, code=6),
                ]
            },
            (3, "", b"insert", ["insert", "update"]),
        ),
        *cases(
            {
                "labels": [
                    lambda value: Fail(code=6, labels=value),
                    lambda value: FailWriteConcern(code=64, labels=value),
                ]
            },
            ("RetryableWriteError", [1], 5, None),
        ),
        *cases({"rewritten": [Corrupt]}, (b"bytes", None)),
        *cases({"burst": [lambda value: RateLimit(1, value)]}, (0.5,)),
        *cases({"recipes": [lambda value: Scenario.random(1, 1.0, value)]}, ([], ())),
        *cases(
            {"server": [ReplicaSet, ShardedCluster, Standalone]},
            ("127.0.0.1:27017", ("127.0.0.1",), ("127.0.0.1", "27017"), (None, 27_017)),
        ),
        *cases(
            {"on": [lambda value: Scenario().after(1, Refuse, 1, on=value)]},
            ("primry", -1, 1.0, None, True),
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(make: Make, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {re.escape(repr(value))}, but must be ."):
        make(value)


def test_a_server_that_is_not_asked_for_its_address_is_refused() -> None:
    wrong: Any = EmbeddedServer()
    with pytest.raises(ValueError, match=r"a host and a port, like EmbeddedServer\.address"):
        ReplicaSet(wrong)


def test_a_scenario_refuses_at_once_what_would_end_it_in_its_middle() -> None:
    with pytest.raises(ValueError, match=r"^times is 0, but must be a whole number of at least 1$"):
        Scenario().after(1.0, CutAfter, "update", times=0)


def test_what_is_allowed_is_said() -> None:
    three: Any = 3
    for make, sentence in {
        lambda: Refuse(0): "seconds is 0, but must be a finite number greater than 0",
        lambda: Latency(1, -1): "jitter is -1, but must be a finite number of at least 0",
        lambda: CutBefore(times=0): "times is 0, but must be a whole number of at least 1",
        lambda: ReplicaSet(
            port=65_535
        ): "port is 65535, but must be a whole number from 1 to 65533",
        lambda: Standalone(members=2): "members is 2, but must be 1",
        lambda: CutAfter(three): "command is 3, but must be the name of a command, or None for any",
    }.items():
        with pytest.raises(ValueError, match="must be") as raised:
            make()
        assert str(raised.value) == sentence


def test_every_fault_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    assert [name for name in (*KINDS, "Corrupt") if f"`{name}`" not in text] == []


def test_the_least_and_the_greatest_that_are_allowed() -> None:
    Latency(1e-9, 0.0)
    Refuse(1)
    RateLimit(0.001, 1)
    Overload(base_backoff=1e-9)
    Overload(code=473)
    SkewedClock(-86_400.5)
    SkewedClock(0)
    ReplicaSet(members=1, port=65_535)
    ReplicaSet(port=65_533)
    Scenario().after(0, CutBefore, None, 1, on=0)
