"""Monitors that are woken: after a network error, and when an operation waits for their server."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.options.config import QUICK_CHECKS, WOKEN_CHECKS
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor
from pymongo_resilience_instrumentation.interception.methods import Method

from .check_intervals import CheckIntervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

_INTERVALS = "_pymongo_resilience_intervals"


def wrapped(runtime: Runtime) -> Iterator[Wrapped]:
    """What to wrap of monitors, and with what."""
    without = runtime.config.disabled_recovery
    for cls, asynchronous in driver.monitors.monitor_classes():
        if WOKEN_CHECKS not in without and driver.connections.CAN_WAKE:
            yield cls, driver.monitors.READ, Read()
            yield cls, driver.monitors.CANCEL, _after(runtime.enabled_flag, driver.monitors.wake)
        if QUICK_CHECKS not in without:
            yield cls, driver.monitors.CHECK, CheckAsync() if asynchronous else Check()
            base = next(each for each in cls.__mro__ if driver.monitors.REQUEST in vars(each))
            sooner = _after(runtime.enabled_flag, driver.monitors.end_sleep)
            yield base, driver.monitors.REQUEST, sooner


class Read(Interceptor):
    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered:
        monitor, connection = driver.monitors.read_arguments(given, kwargs)
        return Entered(monitor, driver.monitors.reading(monitor, connection))


def _after(enabled_flag: EnabledFlag, step: Callable[[Any], None]) -> Method:
    """In a weak reference's callback or under the driver's lock: nothing is logged."""

    def around(original: Function) -> Function:
        def method(monitor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(monitor, *args, **kwargs)
            with suppress(Exception):
                if enabled_flag.on:
                    step(monitor)
            return result

        return method

    return Method(around)


class Check(Interceptor):
    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        return Entered(given[0])

    def succeeded(self, entered: Entered, result: Any) -> Any:
        with shielded("between two checks of a server"):
            driver.monitors.pause(entered.instance, _interval(entered.instance))
        return result


class CheckAsync(Check):
    async def send(self, entered: Entered, original: Function, *given: Any, **kwargs: Any) -> Any:
        result = await original(*given, **kwargs)
        with shielded("between two checks of a server"):
            await driver.monitors.pause_async(entered.instance, _interval(entered.instance))
        return result

    def succeeded(self, entered: Entered, result: Any) -> Any:  # noqa: ARG002 - as above
        return result


def _interval(monitor: Any) -> Callable[[float], float]:
    """After a check: the interval to the next one, given the driver's own."""
    intervals: CheckIntervals = vars(monitor).setdefault(_INTERVALS, CheckIntervals())
    check = driver.monitors.last_check(monitor)
    intervals.note(time.monotonic(), known=check.known, refused=check.refused)

    def seconds(most: float) -> float:
        return most if driver.monitors.seen_as_known(monitor) else intervals.seconds(most)

    return seconds
