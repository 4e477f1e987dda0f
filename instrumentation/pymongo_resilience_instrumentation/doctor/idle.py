"""Whether a connection that was idle is still one: networks forget flows without a word."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from .findings import Finding, Level
from .hello import NotMongoDBError, say_hello
from .probe import Prober

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .probe import Probe
    from .uri import Target

ANSWER_WITHIN = 2.0
"""Seconds."""


def of_idle(probes: Sequence[Probe], target: Target, seconds: float) -> list[Finding]:
    """Leaves one connection to each server alone for so many seconds, then uses it."""
    findings = []
    with ExitStack() as open_connections:
        prober = Prober(target, time.monotonic() + ANSWER_WITHIN)
        held = []
        for probe in probes:
            if probe.hello is not None:
                try:
                    connection = prober.connected(probe)
                except OSError:
                    continue
                held.append((probe, open_connections.enter_context(closing(connection))))
        time.sleep(seconds)
        for probe, connection in held:
            connection.settimeout(ANSWER_WITHIN)
            try:
                say_hello(connection)
            except (OSError, NotMongoDBError):
                text = f"a connection that was idle for {seconds:.0f} s is dead"
                advice = f"maxIdleTimeMS below {seconds * 1000:.0f}, or keepalive in the network"
                findings.append(Finding("idle", Level.WARNING, text, advice, probe.name))
            else:
                text = f"a connection lives after {seconds:.0f} s without use"
                findings.append(Finding("idle", Level.OK, text, server=probe.name))
    return findings
