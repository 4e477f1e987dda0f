"""Makes monitors check a lost server sooner.

Monitors are woken after a network error, or if an operation waits for a server that is unknown for
another reason. While operations wait for a lost server, its monitor checks it at short intervals.
If no operation waits, the intervals grow with the time for which the server has been lost.

The growing intervals are needed because the library notices a loss earlier than pymongo. After a
failed check, pymongo makes a second one at once and the next one ten seconds later. If the second
check came too early as well, the library would find the server later than pymongo alone does.
"""

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
"""Seconds until the second check of a server that was reachable until now."""
MAX_REFUSED_INTERVAL = 0.03
"""Seconds up to which the interval doubles while connections are refused. Such checks are cheap."""
REFUSED_PART = 0.04
"""Maximum delay in finding a server again, as a part of the time for which it refused
connections.
"""
UNREQUESTED_PART = 0.5
"""Interval between checks of a lost server that no operation waits for, as a part of the time for
which it has been lost.
"""
MAX_INTERVAL = 1.0
"""Maximum interval in seconds. pymongo's own interval is shorter."""
REFUSED_S = 1.0
"""Minimum seconds between a failed handshake, such as a wrong password, and the next attempt."""
MAX_HELLOS = 10
"""Number of hellos in one outage that may come at shorter intervals than the specification's."""


_INTERVALS = "_pymongo_resilience_intervals"
_REFUSED = f"[Errno {errno.ECONNREFUSED}]"


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield the methods of monitors and topologies to wrap, and their interceptors."""
    disabled = runtime.config.disabled_recovery
    # If MongoDB's specifications decide and there is no timeout, there is a single retry. It must
    # not come sooner than pymongo's own.
    is_patient = isinstance(runtime.rules.strategy, MongoDB) and runtime.config.timeout_ms is None
    is_quick = not is_patient and RecoveryStep.QUICK_CHECKS not in disabled
    wakes = not is_patient and RecoveryStep.WOKEN_CHECKS not in disabled
    if wakes and driver.connections.CAN_WAKE:
        for cls in driver.clients.classes("monitor", "Monitor"):
            yield cls, driver.monitors.READ, Read()
            yield cls, driver.monitors.CANCEL, CancelCheck()
        bases = driver.clients.classes("monitor", "Monitor")
        for owner in driver.clients.defining(driver.monitors.REQUEST, *bases):
            yield owner, driver.monitors.REQUEST, RequestCheck()
    # Interruptions cancel checks of lost servers, so these need further checks as well.
    if is_quick or RecoveryStep.INTERRUPTIONS not in disabled:
        for cls in driver.clients.classes("topology", "Topology"):
            yield cls, driver.monitors.CHANGE, CheckResult(is_quick=is_quick)


class CheckIntervals:
    """Computes the intervals of one server's monitor. Used only by that monitor.

    Source: Server Discovery and Monitoring, "minHeartbeatFrequencyMS", which sets 500 ms for all.
    """

    def __init__(self) -> None:
        self._reached = False
        self._failed_at: float | None = None
        self._lost_for: float | None = None
        self._interval = FIRST_INTERVAL
        self._hellos = 0

    def note(
        self, now: float, *, known: bool, refused: bool = False, rejected: bool = False
    ) -> None:
        """Record the result of a check.

        Args:
            now: Seconds.
            known: Whether the server responded.
            refused: Whether its address refused the connection.
            rejected: Whether the server is overloaded, so that more hellos would add to the load.
        """
        if known:
            self._reached, self._failed_at, self._interval = True, None, FIRST_INTERVAL
            self._hellos = 0
            return
        # A refused connection is cheap for the server, so it does not count as a hello.
        self._hellos = MAX_HELLOS if rejected else self._hellos + (not refused)
        if self._failed_at is None:
            self._failed_at, self._lost_for = now, None
        else:
            self._lost_for = now - self._failed_at
            doubled = min(self._interval * 2, MAX_INTERVAL)
            # The longer an outage lasts, the less a slightly later check matters.
            limit = max(MAX_REFUSED_INTERVAL, self._lost_for * REFUSED_PART)
            self._interval = min(doubled, limit) if refused else doubled

    def seconds(self, most: float) -> float:
        """Return the seconds until the next check that an operation requests.

        ``most`` is the specification's interval. It applies to servers that were never reached or
        are not lost.
        """
        if not self._may_be_sooner() or self._interval >= most:
            return most
        return _randomized(self._interval, most)

    def unrequested_seconds(self, least: float, most: float) -> float:
        """Return the seconds until the next check that no operation requests.

        ``least`` is the specification's interval between requested checks, ``most`` is
        ``heartbeatFrequencyMS``.
        """
        if not self._may_be_sooner():
            return most
        # After the first failed check, make another one at once, as pymongo does. pymongo omits it
        # if the check before was canceled.
        if self._lost_for is None:
            return 0.0
        return _randomized(max(least, self._lost_for * UNREQUESTED_PART), most)

    def _may_be_sooner(self) -> bool:
        """Return True if the server is lost and has not been asked often yet."""
        return self._reached and self._failed_at is not None and self._hellos < MAX_HELLOS


def _randomized(interval: float, most: float) -> float:
    """Return an interval that differs between the clients of a server, so that they do not all
    check it at once.
    """
    return min(interval * random.uniform(0.75, 1.25), most)  # noqa: S311 - no secret


class Read(Interceptor):
    """Wraps the part of a check that uses the connection."""

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        monitor, connection = args
        # From now on, ``wake`` can end the wait for the reply.
        driver.monitors.begin_reading(monitor, connection)
        return Entered(monitor)

    def succeeded(self, entered: Entered, result: T) -> T:
        driver.monitors.end_reading(entered.instance)
        return result

    def failed(self, entered: Entered | None, error: BaseException, *_: Any) -> BaseException:
        was_woken = entered is not None and driver.monitors.end_reading(entered.instance)
        # A ReferenceError means that the client was garbage-collected; the monitor must see it.
        if was_woken and isinstance(error, Exception) and not isinstance(error, ReferenceError):
            return driver.monitors.cancelled()
        return error


class CancelCheck(Interceptor):
    """Wraps the cancellation of a check. Runs in a weak reference's callback or with the topology's
    lock held, so nothing is logged.
    """

    logs = False

    def succeeded(self, entered: Entered, result: T) -> T:
        # A monitor that cannot be woken only finds out later that its server is gone.
        with suppress(Exception):
            driver.monitors.wake(entered.instance)
        return result


class HurriedChecks:
    """Limits how often requests may end a monitor's wait for news.

    Up to ten in a row are allowed, and over time as many as the specification's interval allows.
    Not thread-safe: a race costs one check.
    """

    def __init__(self) -> None:
        self.last = -math.inf
        """Time of the most recent one, in seconds."""
        self._allowed = float(MAX_HELLOS)

    def allows(self, now: float, interval: float) -> bool:
        """Return True and count one if it is allowed now. ``interval`` is the specification's."""
        allowed = min(MAX_HELLOS, self._allowed + (now - self.last) / interval)
        if allowed < 1:
            return False
        self._allowed, self.last = allowed - 1, now
        return True


def may_hurry(monitor: Monitor, error: Exception, since: float) -> bool:
    """Return True if a check of a server may start before its interval has passed."""
    now = time.monotonic()
    # The server refused a login. Trying again at once would most likely fail again.
    if isinstance(error, OperationFailure) and now - since < REFUSED_S:
        return False
    hurries = driver.monitors.check_intervals(monitor, HurriedChecks)
    return hurries.allows(now, common.MIN_HEARTBEAT_INTERVAL)


class RequestCheck(Interceptor):
    """Wraps the request for a check, which operations make when they wait for a server.

    A server can become unknown without a network error: if it replies "not primary", also through a
    router, or if it refuses a handshake. But only network errors end a monitor's wait for news, so
    this class ends it as well. A handshake that an overloaded server rejects does not get here,
    because the server stays known. The topology's lock is held, so nothing is logged.
    """

    logs = False

    def succeeded(self, entered: Entered, result: T) -> T:
        monitor = entered.instance
        # The topology may have been garbage-collected.
        with suppress(Exception):
            found = driver.monitors.unknown_for(monitor)
            if found is not None and may_hurry(monitor, *found):
                monitor.cancel_check()
        return result


class CheckResult(Interceptor):
    """Runs when a topology receives the result of a check, before the monitor waits for the next
    one.
    """

    def __init__(self, *, is_quick: bool) -> None:
        self._is_quick = is_quick
        """Whether checks that operations request may start sooner than pymongo's."""

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        topology, description, *_ = args
        by_server = vars(topology).setdefault(_INTERVALS, {})
        intervals = by_server.get(description.address)
        if intervals is None:
            # A new server has appeared. This is a rare and good moment to forget servers that have
            # left.
            for address in by_server.keys() - driver.monitors.addresses(topology):
                by_server.pop(address, None)
            intervals = by_server.setdefault(description.address, CheckIntervals())
        # The monitor waits for the intervals that are set here before its next check.
        intervals.note(
            time.monotonic(),
            known=description.is_server_type_known,
            refused=_REFUSED in str(description.error),
            rejected=is_rejection(description.error),
        )
        least, most = common.MIN_HEARTBEAT_INTERVAL, driver.monitors.max_wait(topology)
        if self._is_quick:
            driver.monitors.look_every(intervals.seconds(least), topology, description.address)
        unrequested = intervals.unrequested_seconds(least, most)
        driver.monitors.check_within(unrequested, topology, description.address)
