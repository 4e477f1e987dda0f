"""The test bed: a real server on this machine, proxies in front of it, and faults.

Used by the tests of this library, by its demonstration, and by applications that want to test their
own behavior:

    with ReplicaSet() as replica_set:
        client = MongoClient(replica_set.uri)
        replica_set.inject(CutAfter("insert", times=2))
        replica_set.inject(Election(gap=12.0))

Requires the extra ``testbed``. Everything listens on 127.0.0.1 only.
"""

from .command_faults import (
    ConnectionRateLimit,
    Corrupt,
    CutAfter,
    CutBefore,
    Fail,
    FailStatement,
    FailWriteConcern,
    NotPrimary,
    Overload,
    RateLimit,
    Slow,
)
from .control import Control
from .deployment import Deployment
from .fault import Fault, Interception
from .member_faults import (
    BlackHole,
    CutAtHandshake,
    Election,
    Latency,
    PoolClearingStorm,
    Refuse,
    Reset,
    Restart,
    RollingRestart,
    SilentPrimary,
    SkewedClock,
)
from .real_members import InFrontOf, RealReplicaSet
from .replica_set import ReplicaSet, ShardedCluster, Standalone
from .running import TestbedError
from .scenario import Scenario
from .server import EmbeddedServer

__all__ = [
    "BlackHole", "ConnectionRateLimit", "Control", "Corrupt", "CutAfter", "CutAtHandshake",
    "CutBefore",
    "Deployment", "Election", "EmbeddedServer", "Fail", "FailStatement", "FailWriteConcern",
    "Fault", "InFrontOf", "Interception", "Latency", "NotPrimary", "Overload",
    "PoolClearingStorm", "RateLimit", "RealReplicaSet", "Refuse", "ReplicaSet", "Reset",
    "Restart", "RollingRestart", "Scenario", "ShardedCluster", "SilentPrimary", "SkewedClock",
    "Slow", "Standalone", "TestbedError",
]  # fmt: skip
