"""The test bed: a real server on this machine, a deployment in front of it, and faults.

For the tests of this library, its demonstration, and applications that want to see how they fare::

    with ReplicaSet() as replica_set:
        client = MongoClient(replica_set.uri)
        replica_set.inject(CutAfter("insert", times=2))
        replica_set.inject(Election(gap=12.0))

Needs the extra ``testbed``. Everything listens on 127.0.0.1 alone.
"""

from .deployments.deployment import Deployment
from .deployments.pass_through import InFrontOf
from .deployments.real_replica_set import RealReplicaSet
from .deployments.replica_set import ReplicaSet
from .deployments.unreplicated import ShardedCluster, Standalone
from .fault import Fault
from .faults import (
    BlackHole,
    Corrupt,
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    Fail,
    FailStatement,
    FailWriteConcern,
    Latency,
    NotPrimary,
    Overload,
    PoolClearingStorm,
    RateLimit,
    Refuse,
    Reset,
    Restart,
    RollingRestart,
    SilentPrimary,
    SkewedClock,
    Slow,
)
from .scenario import Scenario
from .server import EmbeddedServer, TestbedError
from .traffic import Interception

__all__ = [
    "BlackHole",
    "Corrupt",
    "CutAfter",
    "CutAtHandshake",
    "CutBefore",
    "Deployment",
    "Election",
    "EmbeddedServer",
    "Fail",
    "FailStatement",
    "FailWriteConcern",
    "Fault",
    "InFrontOf",
    "Interception",
    "Latency",
    "NotPrimary",
    "Overload",
    "PoolClearingStorm",
    "RateLimit",
    "RealReplicaSet",
    "Refuse",
    "ReplicaSet",
    "Reset",
    "Restart",
    "RollingRestart",
    "Scenario",
    "ShardedCluster",
    "SilentPrimary",
    "SkewedClock",
    "Slow",
    "Standalone",
    "TestbedError",
]
