"""The error of an attempt whose server has an open circuit breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo.errors import AutoReconnect

from pymongo_resilience import errors
from pymongo_resilience.breakers import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience.breakers import Snapshot

SWITCH = "PYMONGO_RESILIENCE_CIRCUIT_BREAKER=off"


class CircuitBreakerOpenError(errors.CircuitBreakerOpenError, AutoReconnect):
    """An AutoReconnect, as every ``except`` clause knows one: nothing was sent."""


def refused(
    server: str,
    breaker: Snapshot,
    *,
    window: float,
    next_probe_in: float,
    elsewhere: bool,
    labels: Sequence[str] = (),
) -> CircuitBreakerOpenError:
    """``window`` and ``next_probe_in`` in seconds; ``server`` as ``"host:port"``."""
    state = "open"
    if breaker.state is State.HALF_OPEN:
        state = "half-open, and its probes are under way"
    error = CircuitBreakerOpenError(
        f"nothing was sent: the circuit breaker of {server} is {state}; {breaker.failures} of "
        f"{breaker.calls} calls within {window:g} s had failed; next probe in "
        f"{next_probe_in:.3f} s ({SWITCH} switches circuit breakers off)",
        {"errorLabels": labels},
    )
    vars(error).update(
        server=server,
        next_probe_in=next_probe_in,
        calls=breaker.calls,
        failures=breaker.failures,
        elsewhere=elsewhere,
    )
    return error
