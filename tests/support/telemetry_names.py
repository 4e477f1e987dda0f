"""The names of attributes, events and metrics that the library's code has."""

from __future__ import annotations

import re
from pathlib import Path

from pymongo_resilience_instrumentation import telemetry
from pymongo_resilience_instrumentation.clients.client_registry import POOL_NAME

CODE = "".join(each.read_text() for each in Path(telemetry.__file__).parent.glob("*.py"))
NAMES = {POOL_NAME, *re.findall(r'"([a-z_]+\.[a-z_.]+)"', CODE)}
