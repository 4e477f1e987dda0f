"""A plugin of pytest that switches the library on before pymongo's tests are imported.

``PYMONGO_TESTS_SETUP`` has the arguments of ``instrument()`` as JSON, or null for plain pymongo.
"""

from __future__ import annotations

import json
import os

from pymongo_resilience import instrument


def pytest_configure() -> None:
    options = json.loads(os.environ["PYMONGO_TESTS_SETUP"])
    if options is not None:
        instrument(**options)
