"""The test bed: a real server on this machine, and faults in front of it.

For the tests of this library, its demonstration, and applications that want to see how they fare::

    with EmbeddedServer() as server, Proxy(server.address) as proxy:
        client = MongoClient(proxy.uri)
        proxy.inject(CutAfter("insert", times=2))

Needs the extra ``testbed``. Everything listens on 127.0.0.1 alone.
"""

from pymongo_resilience_instrumentation.testbed.faults import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    NotPrimary,
    Overload,
    Refuse,
    Slow,
    StepDown,
)
from pymongo_resilience_instrumentation.testbed.interception import Fault
from pymongo_resilience_instrumentation.testbed.proxy import Proxy
from pymongo_resilience_instrumentation.testbed.server import EmbeddedServer, TestbedError

__all__ = [
    "CutAfter",
    "CutAtHandshake",
    "CutBefore",
    "EmbeddedServer",
    "Fault",
    "NotPrimary",
    "Overload",
    "Proxy",
    "Refuse",
    "Slow",
    "StepDown",
    "TestbedError",
]
