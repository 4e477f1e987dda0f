"""Recipes of the test bed's catalog, for the only member of a standalone."""

from __future__ import annotations

from dataclasses import replace

from pymongo_resilience_instrumentation.tools.testbed.fault_catalog import (
    NETWORK,
    SERVER,
    Recipe,
    restart,
)


def alone(recipe: Recipe) -> Recipe:
    return lambda rng: replace(recipe(rng), on="all")


STANDALONE = tuple(map(alone, (*NETWORK, restart)))
STANDALONE_SERVER = tuple(map(alone, SERVER))
