"""Monitors that check a lost server sooner: woken after a network error, or if an operation waits
for a server that is unknown for another reason, and looking at shorter intervals whether an
operation waits for the server while it is lost."""

from __future__ import annotations

import errno
import math
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo import common
from pymongo.errors import OperationFailure

from pymongo_resilience.config import RecoveryStep
from pymongo_resilience.rules.strategy import MongoDB
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.causes import is_rejection
from pymongo_resilience_instrumentation.interceptor import Entered, Interceptor, Row
from pymongo_resilience_instrumentation.runtime import Runtime

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Monitor

T = TypeVar("T")

FIRST_INTERVAL = 0.01
"""Seconds to the second check of a server that could be reached until now."""
MAX_REFUSED_INTERVAL = 0.03
"""Seconds to where the interval stops doubling while connections are refused: such checks are
cheap."""
REFUSED_PART = 0.04
"""How late a server is found at most, as a part of the time that it has refused connections."""
MAX_INTERVAL = 1.0
"""Seconds; the driver's own interval is shorter."""
REFUSED_S = 1.0
"""Seconds after a refused handshake, a wrong password for example, before the next may be tried."""
MAX_HELLOS = 10
"""So many hellos of an outage may come at shorter intervals than the specification's."""


_INTERVALS = "_pymongo_resilience_intervals"
_REFUSED = f"[Errno {errno.ECONNREFUSED}]"


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """What to wrap of monitors and topologies, and with what.

    Nothing if MongoDB's specifications decide and there is no timeout: the one retry that they
    allow must not come sooner than pymongo's.
    """
    if isinstance(runtime.rules.strategy, MongoDB) and runtime.config.timeout_ms is None:
        return
    disabled = runtime.config.disabled_recovery
    if RecoveryStep.WOKEN_CHECKS not in disabled and driver.connections.CAN_WAKE:
        for cls in driver.clients.classes("monitor", "Monitor"):
            yield cls, driver.monitors.READ, Read()
            yield cls, driver.monitors.CANCEL, CancelCheck()
        bases = driver.clients.classes("monitor", "Monitor")
        for owner in driver.clients.defining(driver.monitors.REQUEST, *bases):
            yield owner, driver.monitors.REQUEST, RequestCheck()
    if RecoveryStep.QUICK_CHECKS not in disabled:
        for cls in driver.clients.classes("topology", "Topology"):
            yield cls, driver.monitors.CHANGE, CheckResult()


class CheckIntervals:
    """Computes the intervals of one server's monitor, which alone uses it. Source: Server Discovery
    and Monitoring, "minHeartbeatFrequencyMS", which has 500 ms for all."""

    def __init__(self) -> None:
        self._reached = False
        self._failed_at: float | None = None
        self._interval = FIRST_INTERVAL
        self._hellos = 0

    def note(
        self, now: float, *, known: bool, refused: bool = False, rejected: bool = False
    ) -> None:
        """Take note of a check. ``now`` in seconds; ``refused``: the address refused the
        connection; ``rejected``: the server is overloaded, and more hellos would add to that."""
        if known:
            self._reached, self._failed_at, self._interval = True, None, FIRST_INTERVAL
            self._hellos = 0
            return
        self._hellos = MAX_HELLOS if rejected else self._hellos + (not refused)
        if self._failed_at is None:
            self._failed_at = now
        else:
            doubled = min(self._interval * 2, MAX_INTERVAL)
            limit = max(MAX_REFUSED_INTERVAL, (now - self._failed_at) * REFUSED_PART)
            self._interval = min(doubled, limit) if refused else doubled

    def seconds(self, most: float) -> float:
        """Seconds to the next check; ``most``, the specification's, for a server that was never
        reached, and for one that is not lost."""
        lost = self._reached and self._failed_at is not None
        if not lost or self._interval >= most or self._hellos >= MAX_HELLOS:
            return most
        # Not all clients of a server at once.
        return min(self._interval * random.uniform(0.75, 1.25), most)  # noqa: S311 - no secret


class Read(Interceptor):
    """The part of a check that needs its connection."""

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        monitor, connection = args
        driver.monitors.begin_reading(monitor, connection)
        return Entered(monitor)

    def succeeded(self, entered: Entered, result: T) -> T:
        driver.monitors.end_reading(entered.instance)
        return result

    def failed(self, entered: Entered | None, error: BaseException, *_: Any) -> BaseException:
        was_woken = entered is not None and driver.monitors.end_reading(entered.instance)
        # A ReferenceError: the client was collected.
        if was_woken and isinstance(error, Exception) and not isinstance(error, ReferenceError):
            return driver.monitors.cancelled()
        return error


class CancelCheck(Interceptor):
    """In a weak reference's callback or under the driver's lock: nothing is logged."""

    logs = False

    def succeeded(self, entered: Entered, result: T) -> T:
        with suppress(Exception):
            driver.monitors.wake(entered.instance)
        return result


class HurriedChecks:
    """How often requests may cut short a monitor's wait for news: ten times at once, and in the
    long run as often as the specification checks a server. Not thread-safe: a race costs one check.
    """

    def __init__(self) -> None:
        self.last = -math.inf
        """When the last one was, in seconds."""
        self._allowed = float(MAX_HELLOS)

    def allows(self, now: float, interval: float) -> bool:
        """Whether one may be now, which counts it. ``interval``: the specification's."""
        allowed = min(MAX_HELLOS, self._allowed + (now - self.last) / interval)
        if allowed < 1:
            return False
        self._allowed, self.last = allowed - 1, now
        return True


def may_hurry(monitor: Monitor, error: Exception, since: float) -> bool:
    now = time.monotonic()
    if isinstance(error, OperationFailure) and now - since < REFUSED_S:
        return False
    hurries = driver.monitors.check_intervals(monitor, HurriedChecks)
    return hurries.allows(now, common.MIN_HEARTBEAT_INTERVAL)


class RequestCheck(Interceptor):
    """Called under the driver's lock, by operations that wait for a server: nothing is logged.

    A server becomes unknown without a network error if it replies "not primary", also what a router
    relays from a shard, or refuses a handshake; only network errors end a monitor's wait for news.
    A handshake that an overloaded server rejects does not get here: it leaves the server known."""

    logs = False

    def succeeded(self, entered: Entered, result: T) -> T:
        monitor = entered.instance
        with suppress(Exception):  # a topology that was collected, among others
            found = driver.monitors.unknown_for(monitor)
            if found is not None and may_hurry(monitor, *found):
                monitor.cancel_check()
        return result


class CheckResult(Interceptor):
    """A topology takes note of what a check has found, before the monitor waits for the next."""

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        topology, found, *_ = args
        by_server = vars(topology).setdefault(_INTERVALS, {})
        intervals = by_server.get(found.address)
        if intervals is None:
            for left in by_server.keys() - driver.monitors.addresses(topology):
                by_server.pop(left, None)
            intervals = by_server.setdefault(found.address, CheckIntervals())
        intervals.note(
            time.monotonic(),
            known=found.is_server_type_known,
            refused=_REFUSED in str(found.error),
            rejected=is_rejection(found.error),
        )
        seconds = intervals.seconds(common.MIN_HEARTBEAT_INTERVAL)
        driver.monitors.look_every(seconds, topology, found.address)
