"""The ``server_selector`` of clients that have circuit breakers: the application's own, then ours,
which leaves out the servers whose breaker is open.

The driver calls it with the servers that the read preference has left, before its latency window,
and under its topology's lock: nothing here logs or waits, and after an internal error all
servers pass.
"""

from __future__ import annotations

from typing import Any

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import faults
from pymongo_resilience_instrumentation import driver

from .client_limits import ClientBreakers


class ServerSelector:
    """Thread- and task-safe: it has no state of its own."""

    def __init__(self, given: object, enabled_flag: EnabledFlag, breakers: ClientBreakers) -> None:
        """``given``: the client's, from the application or from another client's options."""
        self.own = applications_own(given)
        self._enabled_flag = enabled_flag
        self._breakers = breakers

    def __repr__(self) -> str:
        return repr(self.own)

    def __call__(self, servers: Any) -> Any:
        found = servers if self.own is None else self.own(servers)
        if not self._enabled_flag.on or not isinstance(found, (list, tuple)):
            return found
        try:
            return self._breakers.without_open(found)
        except faults():  # under the driver's lock an internal error is not logged
            return found


def applications_own(selector: object) -> Any:
    """Without ours around it; a client may be made from the options of another one."""
    while isinstance(selector, ServerSelector):
        selector = selector.own
    return None if driver.selection.is_no_selector(selector) else selector
