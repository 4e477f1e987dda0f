"""What the library patches, compared by identity: a wrapper is equal to what it wraps."""

from __future__ import annotations

import sys
from typing import Any

import pymongo
from pymongo_resilience_instrumentation import driver, patches
from support.clients import retry_loops

Places = dict[str, dict[str, Any]]


def patched_places() -> Places:
    """``vars()`` of every class that is patched, and of every module these live in."""
    classes = {owner for owner, _ in patches.PUBLIC} | set(retry_loops())
    modules = {sys.modules[cls.__module__] for cls in classes}
    modules |= {pymongo, pymongo.monitoring, sys.modules["pymongo._csot"]}
    for half in (driver.selection.SYNC_HALF, driver.selection.ASYNC_HALF):
        modules |= {half.module("topology"), half.module("pool")}
    return {str(place): dict(vars(place)) for place in classes | modules}


def differences(before: Places, after: Places) -> set[str]:
    return {
        f"{place}.{name}"
        for place in before
        for name in before[place].keys() | after[place].keys()
        if before[place].get(name) is not after[place].get(name)
    }
