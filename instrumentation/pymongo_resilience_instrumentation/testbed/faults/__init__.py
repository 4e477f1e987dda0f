"""Faults to inject: each a small class whose name says what goes wrong."""

from pymongo_resilience_instrumentation.testbed.faults.commands import (
    Corrupt,
    CutAfter,
    CutBefore,
    Fail,
    FailWriteConcern,
    NotPrimary,
)
from pymongo_resilience_instrumentation.testbed.faults.load import Overload, RateLimit, Slow
from pymongo_resilience_instrumentation.testbed.faults.network import (
    BlackHole,
    CutAtHandshake,
    Latency,
    PoolClearingStorm,
    Refuse,
    Reset,
)
from pymongo_resilience_instrumentation.testbed.faults.replication import (
    Election,
    Restart,
    RollingRestart,
    SkewedClock,
)

__all__ = [
    "BlackHole",
    "Corrupt",
    "CutAfter",
    "CutAtHandshake",
    "CutBefore",
    "Election",
    "Fail",
    "FailWriteConcern",
    "Latency",
    "NotPrimary",
    "Overload",
    "PoolClearingStorm",
    "RateLimit",
    "Refuse",
    "Reset",
    "Restart",
    "RollingRestart",
    "SkewedClock",
    "Slow",
]
