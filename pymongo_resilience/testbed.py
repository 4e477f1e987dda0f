"""Public names of the test bed: deployments and faults to run an application against.

Needs the extra ``testbed``. See docs/testing.md.
"""

from pymongo_resilience_instrumentation.tools.testbed import *  # noqa: F403
from pymongo_resilience_instrumentation.tools.testbed import __all__  # noqa: F401 - for type checkers
