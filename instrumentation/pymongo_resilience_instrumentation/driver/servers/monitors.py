"""Where pymongo's monitors wait: for the reply to a check, and for the time of the next one."""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
from collections.abc import Callable
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo.errors import _OperationCancelled

from pymongo_resilience_instrumentation.driver.csot import now

from .connections import shut_down

if TYPE_CHECKING:
    from collections.abc import Iterator

Interval = Callable[[float], float]
"""Seconds between two checks where one is asked for, given the driver's own."""
CHECK, READ, CANCEL, REQUEST = "_run", "_check_with_socket", "cancel_check", "request_check"
"""A monitor's methods: one check, the part that needs its connection, what ends it, and what has
the next one made soon."""
OF_A_MONITOR = (CHECK, READ, CANCEL, REQUEST, "_executor", "_server_description", "_topology")
OF_AN_EXECUTOR = (
    "_event", "_interval", "_min_interval", "_skip_sleep", "_stopped", "skip_sleep",
)  # fmt: skip
OF_A_TOPOLOGY = ("_description",)
_READING, _WAKE_UP = "_pymongo_resilience_reading", "_pymongo_resilience_wake_up"
_REFUSED = f"[Errno {errno.ECONNREFUSED}]"


class _Reading:
    """A check that may be waiting for its reply."""

    __slots__ = ("connection", "process", "woken")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.process = os.getpid()
        self.woken = False


class LastCheck(NamedTuple):
    """What a monitor's last check found. Immutable."""

    known: bool
    refused: bool
    """The address refused the connection, so no server got a hello."""


def monitor_classes() -> Iterator[tuple[type, bool]]:
    """The classes that check servers, and whether they are of asyncio."""
    for half in ("synchronous", "asynchronous"):
        yield importlib.import_module(f"pymongo.{half}.monitor").Monitor, half == "asynchronous"


def was_cancelled(error: BaseException) -> bool:
    return isinstance(error, _OperationCancelled)


def read_arguments(given: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The monitor and the connection that ``READ`` was called with."""
    return given[0], given[1] if len(given) > 1 else kwargs["conn"]


@contextmanager
def reading(monitor: Any, connection: Any) -> Iterator[None]:
    """Around the part of a check that waits for its reply. A check that was woken was cancelled,
    whatever the driver makes of how it ended."""
    found = vars(monitor)[_READING] = _Reading(connection)
    try:
        yield
    except ReferenceError:  # the client was collected
        raise
    except Exception:
        if found.woken:
            raise _OperationCancelled("operation cancelled") from None
        raise
    finally:
        vars(monitor).pop(_READING, None)


def wake(monitor: Any) -> None:
    """End the monitor's wait: for a reply, or between two checks.

    May be called from a weak reference's callback: it takes no locks.
    """
    reading = vars(monitor).get(_READING)
    # A socket that was inherited by a fork is still the parent's.
    if reading is not None and reading.process == os.getpid():
        reading.woken = True
        shut_down(reading.connection)
    end_sleep(monitor)


def end_sleep(monitor: Any) -> None:
    """Have a monitor that waits for its next check look again at when that is."""
    wake_up = vars(monitor).get(_WAKE_UP)
    if isinstance(wake_up, SimpleQueue):
        wake_up.put(None)
    elif wake_up is not None:
        try:
            wake_up.get_loop().call_soon_threadsafe(_answer, wake_up)
        except RuntimeError:  # the loop is closed
            return


def _answer(wake_up: asyncio.Future[None]) -> None:
    if not wake_up.done():
        wake_up.set_result(None)


def last_check(monitor: Any) -> LastCheck:
    found = monitor._server_description
    return LastCheck(found.is_server_type_known, _REFUSED in str(found.error))


def seen_as_known(monitor: Any) -> bool:
    """Whether the client knows the server at the moment: a failed operation makes it unknown."""
    try:
        servers = monitor._topology._description.server_descriptions()
    except ReferenceError:  # the client was collected
        return True
    found = servers.get(monitor._server_description.address)
    return found is None or found.is_server_type_known


def pause(monitor: Any, interval: Interval) -> None:
    """Wait until the next check is due, in place of the driver, which looks every half second
    whether one is asked for."""
    executor, ended = monitor._executor, now()
    if executor._skip_sleep:
        return
    try:
        while True:
            wake_up = vars(monitor)[_WAKE_UP] = SimpleQueue[None]()
            left = _left(executor, ended, interval)
            if left <= 0:
                break
            with suppress(Empty):
                wake_up.get(timeout=left)
    finally:
        vars(monitor).pop(_WAKE_UP, None)
    if not executor._stopped:
        executor.skip_sleep()


async def pause_async(monitor: Any, interval: Interval) -> None:
    """As ``pause``."""
    executor, ended = monitor._executor, now()
    if executor._skip_sleep:
        return
    try:
        while True:
            wake_up = vars(monitor)[_WAKE_UP] = asyncio.get_running_loop().create_future()
            left = _left(executor, ended, interval)
            if left <= 0:
                break
            await asyncio.wait([wake_up], timeout=left)
    finally:
        vars(monitor).pop(_WAKE_UP, None)
    if not executor._stopped:
        executor.skip_sleep()


def _left(executor: Any, ended: float, interval: Interval) -> float:
    """Seconds to sleep at most: what does not wake it is seen as soon as by the driver itself."""
    if executor._stopped:
        return 0.0
    least: float = executor._min_interval
    due = ended + (interval(least) if executor._event else executor._interval)
    return min(due - now(), least)
