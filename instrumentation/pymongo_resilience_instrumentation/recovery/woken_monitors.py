"""Monitors that check a lost server sooner: woken after a network error and when an operation waits
for their server, and checking at shorter intervals while it is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pymongo_resilience.config import QUICK_CHECKS, WOKEN_CHECKS
from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    Row,
    Wrapper,
)
from pymongo_resilience_instrumentation.runtime import Runtime

FIRST = 0.01
"""Seconds to the second check of a server that could be reached until now."""
REFUSED = 0.03
"""Seconds to where the interval stops doubling while connections are refused: such checks are
cheap."""
REFUSED_PART = 0.04
"""How late a server is found at most, as a part of the time that it has refused connections."""
LONGEST = 1.0
"""Seconds; the driver's own interval is shorter."""
MOST_HELLOS = 10
"""So many hellos of an outage may come at shorter intervals than the specification's."""


_INTERVALS = "_pymongo_resilience_intervals"


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """What to wrap of monitors, and with what."""
    without = runtime.config.disabled_recovery
    woken = WOKEN_CHECKS not in without and driver.connections.CAN_WAKE
    quick = QUICK_CHECKS not in without
    for module, name in driver.monitors.connectors():
        yield module, name, Connect()
    for cls, asynchronous in driver.monitors.monitor_classes():
        yield cls, driver.monitors.READ, Read()
        yield cls, driver.monitors.CHECK, (CheckAsync if asynchronous else Check)(quick)
        if woken:
            yield cls, driver.monitors.CANCEL, _after(runtime.enabled_flag, driver.monitors.wake)
        if quick:
            base = next(each for each in cls.__mro__ if driver.monitors.REQUEST in vars(each))
            sooner = _after(runtime.enabled_flag, driver.monitors.end_sleep)
            yield base, driver.monitors.REQUEST, sooner


class CheckIntervals:
    """Computes the intervals of one server's monitor, which alone uses it. Source: Server Discovery
    and Monitoring, "minHeartbeatFrequencyMS", which has 500 ms for all."""

    def __init__(self) -> None:
        self._reached = False
        self._failed_at: float | None = None
        self._interval = FIRST
        self._hellos = 0

    def note(self, now: float, *, known: bool, refused: bool) -> None:
        """After each check. ``now`` in seconds; ``refused``: the address refused the connection."""
        if known:
            self._reached, self._failed_at, self._interval = True, None, FIRST
            self._hellos = 0
            return
        self._hellos += not refused
        if self._failed_at is None:
            self._failed_at = now
        else:
            doubled = min(self._interval * 2, LONGEST)
            limit = max(REFUSED, (now - self._failed_at) * REFUSED_PART)
            self._interval = min(doubled, limit) if refused else doubled

    def seconds(self, most: float) -> float:
        """Seconds to the next check; ``most``, the specification's, for one that was never
        reached."""
        if not self._reached or self._interval >= most or self._hellos >= MOST_HELLOS:
            return most
        # Not all clients of a server at once.
        return min(self._interval * random.uniform(0.75, 1.25), most)  # noqa: S311 - no secret


class Connect(Interceptor):
    """A socket is opened."""

    def succeeded(self, _entered: Entered, result: Any) -> Any:
        driver.monitors.note_connected()
        return result


class Read(Interceptor):
    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered:
        monitor, connection = given[0], given[1] if len(given) > 1 else kwargs["conn"]
        return Entered(monitor, driver.monitors.reading(monitor, connection))


def _after(enabled_flag: EnabledFlag, step: Callable[[Any], None]) -> Wrapper:
    """In a weak reference's callback or under the driver's lock: nothing is logged."""

    def wrapper(original: Function, monitor: Any, args: Any, kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with suppress(Exception):
            if enabled_flag.on:
                step(monitor)
        return result

    return wrapper


class Check(Interceptor):
    """One check, and the wait for the next one."""

    def __init__(self, quick: bool) -> None:
        self._quick = quick

    def send(self, entered: Entered, original: Function, *given: Any, **kwargs: Any) -> Any:
        with driver.monitors.checking(entered.instance):
            result = original(*given, **kwargs)
        with shielded("between two checks of a server"):
            if self._quick:
                driver.monitors.pause(entered.instance, _interval(entered.instance))
        return result


class CheckAsync(Check):
    async def send(self, entered: Entered, original: Function, *given: Any, **kwargs: Any) -> Any:
        with driver.monitors.checking(entered.instance):
            result = await original(*given, **kwargs)
        with shielded("between two checks of a server"):
            if self._quick:
                await driver.monitors.pause_async(entered.instance, _interval(entered.instance))
        return result


def _interval(monitor: Any) -> Callable[[float], float]:
    """After a check: the interval to the next one, given the driver's own."""
    intervals: CheckIntervals = vars(monitor).setdefault(_INTERVALS, CheckIntervals())
    known, refused = driver.monitors.last_check(monitor)
    intervals.note(time.monotonic(), known=known, refused=refused)

    def seconds(most: float) -> float:
        return most if driver.monitors.seen_as_known(monitor) else intervals.seconds(most)

    return seconds
