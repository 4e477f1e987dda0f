"""A wrong argument is one sentence: what it is called, its value, and what is allowed."""

from __future__ import annotations

import inspect
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
    ConnectionRateLimit,
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

NO_NUMBER: tuple[Any, ...] = (math.nan, math.inf, "1", True, [1])
POSITIVE = (0, -0.5, *NO_NUMBER)
COUNT = (0, -1, 1.5, None, *NO_NUMBER)
PORT = (0, -1, 65_536, 27_017.0, True)
SEED = (-1, 1.5, None, "1", True)
LABELS = ("RetryableWriteError", [1], 5, None)
COMMAND = (3, "", b"insert", ["insert", "update"], "insert_one", "find_and_modify")
SERVER = ("127.0.0.1:27017", ("127.0.0.1",), ("127.0.0.1", "27017"), (None, 27_017))
WRONG: list[tuple[str, Callable[[Any], object], tuple[Any, ...]]] = [
    *(("seconds", kind, (*POSITIVE, None)) for kind in (Refuse, BlackHole, Latency, Slow)),
    ("seconds", lambda value: Scenario.random(1, value, NETWORK), POSITIVE),
    ("seconds", lambda value: RateLimit(1, seconds=value), POSITIVE),
    ("seconds", lambda value: Scenario().after(value, Refuse, 1.0), (-1, None, *NO_NUMBER)),
    ("seconds", SkewedClock, (None, 1e30, *NO_NUMBER)),
    ("every", lambda value: PoolClearingStorm(every=value), POSITIVE),
    ("every", lambda value: Scenario.random(1, 1.0, NETWORK, every=value), POSITIVE),
    ("gap", Election, POSITIVE),
    ("gap", lambda value: Restart(gap=value), POSITIVE),
    ("gap", lambda value: RollingRestart(gap=value), POSITIVE),
    *(("downtime", kind, POSITIVE) for kind in (Restart, RollingRestart)),
    ("pause", lambda value: RollingRestart(pause=value), POSITIVE),
    ("rate", RateLimit, POSITIVE),
    ("burst", lambda value: RateLimit(1, value), (0.5, *POSITIVE)),
    ("base_backoff", lambda value: Overload(base_backoff=value), POSITIVE),
    ("base_backoff", lambda value: RateLimit(1, base_backoff=value), POSITIVE),
    ("rejection_cost", lambda value: RateLimit(1, rejection_cost=value), (-0.1, None, *NO_NUMBER)),
    ("exempt", lambda value: RateLimit(1, exempt=value), ("mongot", [1])),
    ("rate", ConnectionRateLimit, POSITIVE),
    ("jitter", lambda value: Latency(1, value), (-0.001, None, *NO_NUMBER)),
    ("startup_timeout", lambda value: EmbeddedServer(startup_timeout=value), POSITIVE),
    ("times", lambda value: CutBefore("insert", value), COUNT),
    *(("times", kind, COUNT) for kind in (CutAtHandshake, PoolClearingStorm)),
    ("code", lambda value: Fail(code=value), COUNT),
    ("code", lambda value: FailWriteConcern(code=value), COUNT),
    ("labels", lambda value: Fail(code=6, labels=value), LABELS),
    ("labels", lambda value: FailWriteConcern(code=64, labels=value), LABELS),
    *(("command", kind, COMMAND) for kind in (CutBefore, CutAfter, NotPrimary, Overload)),
    ("command", lambda value: Fail(value, code=6), COMMAND),
    ("rewritten", Corrupt, (b"bytes", None)),
    ("members", lambda value: ReplicaSet(members=value), (0, 1.5, 51, *NO_NUMBER)),
    ("members", lambda value: ShardedCluster(members=value), (0, 51)),
    ("members", lambda value: Standalone(members=value), (0, 2)),
    ("port", lambda value: ReplicaSet(port=value), (*PORT, 65_534)),
    ("port", lambda value: Standalone(port=value), PORT),
    ("seed", lambda value: Latency(1, seed=value), SEED),
    ("seed", lambda value: Scenario.random(value, 1.0, NETWORK), SEED),
    ("recipes", lambda value: Scenario.random(1, 1.0, value), ([], ())),
    *(("server", kind, SERVER) for kind in (ReplicaSet, ShardedCluster, Standalone)),
    ("on", lambda value: Scenario().after(1, Refuse, 1, on=value), ("primry", -1, 1.0, None)),
]


@pytest.mark.parametrize(
    ("name", "make", "values"), WRONG, ids=[f"{name}{n}" for n, (name, *_) in enumerate(WRONG)]
)
def test_a_wrong_argument_is_one_sentence(
    name: str, make: Callable[[Any], object], values: tuple[Any, ...]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{name} is {re.escape(repr(value))}, but must be ."):
            make(value)


def test_every_fault_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    shown = dict(re.findall(r"`(\w+)(?:\((.*?)\))?`", text.partition("| fault |")[2]))
    for name, kind in {**KINDS, "Corrupt": Corrupt}.items():
        parameters = inspect.signature(kind).parameters.values()
        assert bool(shown[name]) == any(each.default is each.empty for each in parameters), name
