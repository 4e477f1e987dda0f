"""Whether a connection that was idle is still one: networks forget flows without a word."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

from .findings import Finding, Level
from .hello import NotMongoDBError, say_hello
from .probe import Probe, Prober

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .uri import Target

ANSWER_WITHIN = 2.0
"""Seconds."""


def of_idle(probes: Sequence[Probe], target: Target, seconds: float) -> Iterator[Finding]:
    """Leaves one connection to each server alone for so many seconds, then uses it."""
    prober, held = Prober(target, time.monotonic() + ANSWER_WITHIN), {}
    with ExitStack() as connections:
        for each in probes:
            if each.hello is not None:
                with suppress(OSError):
                    connection = prober.connected(Probe(each.address))
                    held[each.name] = connections.enter_context(closing(connection))
        time.sleep(seconds)
        for server, connection in held.items():
            connection.settimeout(ANSWER_WITHIN)
            try:
                say_hello(connection)
            except (OSError, NotMongoDBError):
                text = f"a connection that was idle for {seconds:.0f} s is dead"
                advice = (
                    f"set maxIdleTimeMS below {seconds * 1000:.0f}, or keepalive in the network"
                )
                yield Finding("idle", Level.WARNING, text, advice, server)
            else:
                text = f"a connection lives after {seconds:.0f} s without use"
                yield Finding("idle", Level.OK, text, server=server)
