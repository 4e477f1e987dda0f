"""Monitors that are woken: after a network error, and when an operation waits for their server."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pymongo_resilience.config import QUICK_CHECKS, WOKEN_CHECKS
from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import driver

from .check_intervals import CheckIntervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo_resilience_instrumentation.interception.methods import Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime

Wrapped = tuple[type, str, "Wrapper"]
_INTERVALS = "_pymongo_resilience_intervals"


def wrapped(runtime: Runtime) -> Iterator[Wrapped]:
    """What to wrap of monitors, and with what."""
    without = runtime.config.recovery_without
    for cls, asynchronous in driver.monitors.monitor_classes():
        if WOKEN_CHECKS not in without and driver.connections.CAN_WAKE:
            yield cls, driver.monitors.READ, _read(asynchronous)
            yield cls, driver.monitors.CANCEL, _cancel(runtime)
        if QUICK_CHECKS not in without:
            yield cls, driver.monitors.CHECK, _check(runtime, asynchronous)
            base = next(each for each in cls.__mro__ if driver.monitors.REQUEST in vars(each))
            yield base, driver.monitors.REQUEST, _request


def _read(asynchronous: bool) -> Wrapper:
    def wrapper(
        wrapped: Callable[..., Any], monitor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with driver.monitors.reading(monitor, args[0]):
            return wrapped(*args, **kwargs)

    async def async_wrapper(
        wrapped: Callable[..., Any], monitor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with driver.monitors.reading(monitor, args[0]):
            return await wrapped(*args, **kwargs)

    return async_wrapper if asynchronous else wrapper


def _cancel(runtime: Runtime) -> Wrapper:
    def wrapper(
        wrapped: Callable[..., Any], monitor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        # In a weak reference's callback or under the driver's lock: nothing is logged.
        with suppress(Exception):
            if runtime.enabled_flag.on:
                driver.monitors.wake(monitor)
        return result

    return wrapper


def _request(
    wrapped: Callable[..., Any], monitor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    result = wrapped(*args, **kwargs)
    with suppress(Exception):
        driver.monitors.ring(monitor)
    return result


def _check(runtime: Runtime, asynchronous: bool) -> Wrapper:
    def wrapper(
        wrapped: Callable[..., Any], monitor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        try:
            if runtime.enabled_flag.on:
                driver.monitors.pause(monitor, _interval(monitor))
        except Exception:
            logger.exception("internal error in pymongo-resilience between two checks of a server")
        return result

    async def async_wrapper(
        wrapped: Callable[..., Any], monitor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = await wrapped(*args, **kwargs)
        try:
            if runtime.enabled_flag.on:
                await driver.monitors.pause_async(monitor, _interval(monitor))
        except Exception:
            logger.exception("internal error in pymongo-resilience between two checks of a server")
        return result

    return async_wrapper if asynchronous else wrapper


def _interval(monitor: Any) -> Callable[[float], float]:
    """After a check: the interval to the next one, given the driver's own."""
    intervals: CheckIntervals = vars(monitor).setdefault(_INTERVALS, CheckIntervals())
    check = driver.monitors.last_check(monitor)
    intervals.note(time.monotonic(), known=check.known, refused=check.refused)

    def seconds(most: float) -> float:
        return most if driver.monitors.seen_as_known(monitor) else intervals.seconds(most)

    return seconds
