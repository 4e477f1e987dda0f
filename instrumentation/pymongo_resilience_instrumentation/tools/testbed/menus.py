"""The former name of ``fault_catalog``; it goes with the next minor version."""

import warnings

from .fault_catalog import *  # noqa: F403 - an alias of all its names

warnings.warn(
    "pymongo_resilience_instrumentation.tools.testbed.menus is testbed.fault_catalog now",
    DeprecationWarning,
    stacklevel=2,
)
