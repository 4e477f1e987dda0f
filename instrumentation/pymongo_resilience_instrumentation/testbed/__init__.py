"""The test bed: a real server on this machine, a deployment in front of it, and faults.

For the tests of this library, its demonstration, and applications that want to see how they fare::

    with ReplicaSet() as replica_set:
        client = MongoClient(replica_set.uri)
        replica_set.inject(CutAfter("insert", times=2))
        replica_set.inject(Election(gap=12.0))

Needs the extra ``testbed``. Everything listens on 127.0.0.1 alone.
"""

from pymongo_resilience_instrumentation.testbed.deployment import Deployment
from pymongo_resilience_instrumentation.testbed.fault import Fault
from pymongo_resilience_instrumentation.testbed.faults import (
    BlackHole,
    Corrupt,
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    Fail,
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
    SkewedClock,
    Slow,
)
from pymongo_resilience_instrumentation.testbed.interception import Interception
from pymongo_resilience_instrumentation.testbed.replica_set import ReplicaSet
from pymongo_resilience_instrumentation.testbed.scenario import Scenario
from pymongo_resilience_instrumentation.testbed.server import EmbeddedServer, TestbedError
from pymongo_resilience_instrumentation.testbed.sharded_cluster import ShardedCluster
from pymongo_resilience_instrumentation.testbed.standalone import Standalone

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
    "FailWriteConcern",
    "Fault",
    "Interception",
    "Latency",
    "NotPrimary",
    "Overload",
    "PoolClearingStorm",
    "RateLimit",
    "Refuse",
    "ReplicaSet",
    "Reset",
    "Restart",
    "RollingRestart",
    "Scenario",
    "ShardedCluster",
    "SkewedClock",
    "Slow",
    "Standalone",
    "TestbedError",
]
