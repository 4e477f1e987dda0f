"""Pauses new connections of a pool while an overloaded server rejects them.

A connection costs a hello, a login and, with TLS, a key exchange. pymongo 4.20 creates one whenever
none is idle, so operations that are retried under overload connect again and again. That takes
capacity from requests on the server and slows down the client. While the pool has other
connections, an operation waits for one of these instead.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.config import RecoveryStep
from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.interceptor import Entered, Function, Interceptor, Row
from pymongo_resilience_instrumentation.runtime import Runtime

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Connection, Pool

FIRST_PAUSE = 0.1
"""Seconds without new connections after the first rejection. Each further rejection doubles the
pause. It is randomized, so that not all clients connect at once.
"""
MAX_PAUSE = 1.0
"""Maximum pause in seconds."""
REFILL_FIRST, REFILL_LONGEST = 1.0, 10.0
"""Seconds until the pool is filled up to ``minPoolSize`` again after the first rejection of such a
connection. Doubled as well. pymongo would try once a second, or send nothing for ten seconds to a
server that it considers lost.
"""
SHARE = 0.5
"""Maximum part of the remaining time that an operation waits. The rest is kept for a new
connection.
"""

REJECTED = 462
"""IngressRequestRateLimitExceeded, in MongoDB 8.2 and newer."""


class Dialing:
    """Decides whether one pool may create connections.

    Thread- and task-safe, because each step is one operation on a set or an attribute. A race costs
    one extra connection.
    """

    __slots__ = ("making", "paused_until", "refill_paused_until", "refills_rejected", "rejected")

    def __init__(self) -> None:
        self.making: set[object] = set()
        """One object for each connection that is being created."""
        self.rejected = 0
        """Number of consecutive rejections, not counting simultaneous ones."""
        self.paused_until = 0.0
        self.refills_rejected = 0
        self.refill_paused_until = 0.0

    def note_rejected_refill(self, now: float) -> None:
        """Start a pause that applies only to connections for ``minPoolSize``."""
        pause = min(REFILL_LONGEST, REFILL_FIRST * 2.0**self.refills_rejected)
        self.refills_rejected = min(self.refills_rejected + 1, 10)
        self.refill_paused_until = now + pause * random.uniform(0.75, 1.25)  # noqa: S311 - as below

    def note_rejection(self, now: float) -> None:
        """Start a pause, unless there is one already: several connections may be rejected at
        once.
        """
        # Several connections may be rejected at once, which must not double the pause several
        # times.
        if now >= self.paused_until:
            pause = min(MAX_PAUSE, FIRST_PAUSE * 2.0**self.rejected)
            self.rejected = min(self.rejected + 1, 10)
            self.paused_until = now + pause * random.uniform(0.75, 1.25)  # noqa: S311 - no secret

    def check_refill(self, now: float) -> None:
        """Raise the error of a rejected connection while connections for ``minPoolSize`` are
        paused.

        Only pymongo's background task gets the error. It logs it and tries again a second later.
        """
        if now < self.refill_paused_until:
            text = (
                "no connection was made for minPoolSize, because the overloaded server rejected "
                "the last one; it is tried again later"
            )
            labels = [SYSTEM_OVERLOADED, RETRYABLE]
            raise OperationFailure(text, REJECTED, {"errorLabels": labels, "code": REJECTED})

    def note_success(self) -> None:
        """End the pauses: the pool may grow again."""
        self.rejected, self.paused_until = 0, 0.0
        self.refills_rejected, self.refill_paused_until = 0, 0.0


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield the methods of pools to wrap, and their interceptors."""
    if RecoveryStep.REJECTIONS not in runtime.config.disabled_recovery:
        for owner in driver.clients.classes("pool", "Pool"):
            yield owner, driver.selection.HANDSHAKE, PausedDialing()


class Dial(Entered):
    """One connection that a pool is about to create."""

    __slots__ = ("dialing", "ends", "is_refill", "was_reused")

    def __init__(self, pool: Pool, dialing: Dialing, *, is_refill: bool) -> None:
        super().__init__(pool)
        self.dialing = dialing
        self.is_refill = is_refill
        """True if it is for ``minPoolSize`` and not for an operation."""
        self.ends = 0.0
        """How long the operation waits for another connection, on the monotonic clock."""
        self.was_reused = False
        """True if it got one."""


class PausedDialing(Interceptor):
    """Wraps the method with which a pool creates a connection."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Dial | None:
        pool = args[0]
        if driver.dialing.is_monitor_pool(pool):
            return None
        # pymongo passes no handler if its background task fills the pool up.
        handler = args[1] if len(args) > 1 else kwargs.get("handler")
        dial = Dial(pool, driver.dialing.kept(pool, Dialing), is_refill=handler is None)
        now = time.monotonic()
        if now < dial.dialing.paused_until and not dial.is_refill:
            limit, remaining = driver.dialing.wait_queue_timeout(pool), driver.csot.remaining()
            # With a short waitQueueTimeoutMS, those that queue behind this one would run out of
            # time, so the pool does not pause.
            if limit is None or now + SHARE * limit >= dial.dialing.paused_until:
                latest = [] if remaining is None else [now + SHARE * remaining]
                dial.ends = min([dial.dialing.paused_until, *latest])
        return dial

    def send(self, dial: Dial, original: Function, *args: Any, **kwargs: Any) -> Any:
        if dial.is_refill:
            dial.dialing.check_refill(time.monotonic())
        elif dial.ends:
            connection = _wait_for_idle(dial.instance, dial.dialing, dial.ends)
            if connection is not None:
                dial.was_reused = True
                return connection
        dial.dialing.making.add(dial)
        return original(*args, **kwargs)

    async def send_async(self, dial: Dial, original: Function, *args: Any, **kwargs: Any) -> Any:
        """As ``send``, in a task."""
        if dial.is_refill:
            dial.dialing.check_refill(time.monotonic())
        elif dial.ends:
            connection = await _wait_for_idle_async(dial.instance, dial.dialing, dial.ends)
            if connection is not None:
                dial.was_reused = True
                return connection
        dial.dialing.making.add(dial)
        return await original(*args, **kwargs)

    def succeeded(self, dial: Dial, connection: Connection) -> Connection:
        dial.dialing.making.discard(dial)
        if not dial.was_reused:
            dial.dialing.note_success()
        return connection

    def failed(self, dial: Dial | None, error: BaseException, *_: Any) -> BaseException:
        if dial is None or dial not in dial.dialing.making:
            return error
        dial.dialing.making.discard(dial)
        # Only a rejection by an overloaded server starts a pause.
        if isinstance(error, PyMongoError) and error.has_error_label(SYSTEM_OVERLOADED):
            now = time.monotonic()
            dial.dialing.note_rejection(now)
            if dial.is_refill:
                dial.dialing.note_rejected_refill(now)
        return error


def _look(pool: Pool, dialing: Dialing, ends: float) -> tuple[Connection | None, float]:
    """Return an idle connection or None, and the seconds to wait for one.

    Zero or less means that it is time to create a connection. The pool's lock is held.
    """
    # Waiting would be pointless: no connection can be returned.
    if not driver.dialing.has_other_connections(pool, len(dialing.making)):
        return None, 0.0
    return driver.dialing.take_idle(pool), ends - time.monotonic()


def _wait_for_idle(pool: Pool, dialing: Dialing, ends: float) -> Connection | None:
    """Return a connection that another operation has returned, or None if it is time to
    create one.
    """
    while True:
        with driver.dialing.condition(pool):
            connection, seconds = _look(pool, dialing, ends)
            if connection is None:
                if seconds <= 0:
                    return None
                driver.dialing.wait(pool, seconds)
                continue
        # Check the connection without the lock, as pymongo does: the check may take time. If it is
        # no longer usable, wait for another one.
        if driver.dialing.is_usable(pool, connection):
            return connection


async def _wait_for_idle_async(pool: Pool, dialing: Dialing, ends: float) -> Connection | None:
    """As ``_wait_for_idle``, in a task."""
    while True:
        async with driver.dialing.condition(pool):
            connection, seconds = _look(pool, dialing, ends)
            if connection is None:
                if seconds <= 0:
                    return None
                await driver.dialing.wait_async(pool, seconds)
                continue
        if await driver.dialing.is_usable_async(pool, connection):
            return connection
