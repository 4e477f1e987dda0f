"""Patches that operations do without until one of them needs them."""

from __future__ import annotations

from typing import get_args

from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from pymongo_resilience_instrumentation.interception.methods import Need
from pymongo_resilience_instrumentation.patches import Patches


def put_all_on() -> Patches:
    """As if each had been needed. Returns what is on."""
    patches = PymongoResilienceInstrumentor()._patches
    assert patches is not None
    for need in get_args(Need):
        patches.need(need)
    return patches
