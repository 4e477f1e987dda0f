"""Reads are wrapped for hedging once the first policy asks for it: most processes have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience.policies.first_use import HEDGED_READS
from pymongo_resilience_instrumentation.self_check import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.runtime import Runtime

NEEDED = {Feature.RETRIES, Feature.CURSORS, Feature.RETARGETING, Feature.BREAKERS}


def wrap_when_used(
    runtime: Runtime,
    without: Collection[Feature],
    wrap: Callable[[Iterable[Wrapped]], None],
) -> None:
    """Now, where a policy asked for it already."""
    once = [True]

    def prepare() -> None:
        try:
            once.pop()
        except IndexError:  # done, or another thread is doing it
            return
        with shielded("while wrapping reads: none is hedged"):
            if NEEDED & set(without):
                logger.warning("no read is hedged: pymongo decides on its retries by itself")
                return
            from . import hedged_methods  # noqa: PLC0415 - most processes hedge nothing

            runtime.need("avoided server")
            wrap(hedged_methods.wrapped(runtime))

    HEDGED_READS.prepare_with(prepare)
