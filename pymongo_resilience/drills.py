"""Ready-made faults for the test bed: drills that operators practice, and a catalog to draw from.

Needs the extra ``testbed``; see docs/testing.md. ``DRILLS`` maps the name of each drill to its
scenario, and ``drill(name, deployment)`` returns one that fits a deployment. ``NETWORK``,
``FAILOVER`` and ``SERVER`` are recipes for ``Scenario.random``.
"""

from pymongo_resilience_instrumentation.tools.testbed.drills import DRILLS, drill
from pymongo_resilience_instrumentation.tools.testbed.fault_catalog import (
    FAILOVER,
    NETWORK,
    SERVER,
    Recipe,
)

__all__ = ["DRILLS", "FAILOVER", "NETWORK", "SERVER", "Recipe", "drill"]
