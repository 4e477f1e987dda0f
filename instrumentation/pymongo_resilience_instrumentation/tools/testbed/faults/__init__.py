"""Faults to inject: each a small class whose name says what goes wrong."""

from .command_faults import (
    Corrupt,
    CutAfter,
    CutBefore,
    Fail,
    FailStatement,
    FailWriteConcern,
    NotPrimary,
)
from .load import Overload, RateLimit, Slow
from .network import BlackHole, CutAtHandshake, Latency, PoolClearingStorm, Refuse, Reset
from .replication import Election, Restart, RollingRestart, SilentPrimary, SkewedClock

__all__ = [
    "BlackHole",
    "Corrupt",
    "CutAfter",
    "CutAtHandshake",
    "CutBefore",
    "Election",
    "Fail",
    "FailStatement",
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
    "SilentPrimary",
    "SkewedClock",
    "Slow",
]
