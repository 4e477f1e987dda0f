"""Pauses new connections of a pool while an overloaded server rejects them.

A connection costs a hello, a login and, with TLS, a key exchange. pymongo 4.20 creates one whenever
none is idle, so operations that are retried under overload connect again and again. That takes
capacity from requests on the server and slows down the client. While the server rejects them, a
pool creates one connection at a time, at intervals. If it has other connections, operations wait
for one of these. If it has none, as after a restart of the server, they wait for the result of the
next connection: if the server rejects it, it counts as rejected for all of them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pymongo.errors import OperationFailure, PyMongoError

from pymongo_resilience.config import RecoveryStep
from pymongo_resilience.rules.failure import RETRYABLE, SYSTEM_OVERLOADED
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.causes import is_rejection
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
EMPTY_PAUSE = 0.1
"""Maximum pause in seconds of a pool that has no connection. It does not grow, because the first
operation after the overload waits for its end.
"""
DIALS_FOR = 1.0
"""Seconds after which a connection that is still being created no longer keeps others from being
created.
"""
TICK = 0.02
"""Seconds after which a waiting operation looks at its pool again: pymongo notifies nobody when a
connection is closed.
"""
REFILL_FIRST, REFILL_LONGEST = 1.0, 10.0
"""The pause in seconds after the first rejected connection for ``minPoolSize``, and the longest
pause. Each further rejection doubles it. pymongo would try once a second, or send nothing for ten
seconds to a server that it considers lost.
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

    __slots__ = (
        "empty_paused_until",
        "making",
        "next_dial",
        "paused_until",
        "refill_paused_until",
        "refills_rejected",
        "rejected",
        "sharing",
    )

    def __init__(self) -> None:
        self.making: set[object] = set()
        """One object for each connection that is being created."""
        self.next_dial: Dial | None = None
        """The operation whose turn it is: it creates a connection, or will do so after the
        pause.
        """
        self.rejected = 0
        """Number of consecutive rejections, not counting simultaneous ones."""
        self.sharing = 0
        """Number of operations that waited for the last connection when it was rejected, and do not
        know it yet.
        """
        self.paused_until = 0.0
        self.empty_paused_until = 0.0
        """The end of the pause if the pool has no connection. 0 if the server itself rejected
        none.
        """
        self.refills_rejected = 0
        self.refill_paused_until = 0.0

    def note_rejected_refill(self, now: float) -> None:
        """Start a pause that applies only to connections for ``minPoolSize``."""
        pause = min(REFILL_LONGEST, REFILL_FIRST * 2.0**self.refills_rejected)
        # By ten rejections, the pause has reached its maximum. Without this bound, the power of two
        # would overflow.
        self.refills_rejected = min(self.refills_rejected + 1, 10)
        self.refill_paused_until = now + pause * random.uniform(0.75, 1.25)  # noqa: S311 - as below

    def take_turn(self, dial: Dial, now: float, paused_until: float) -> bool:
        """Return True if ``dial`` creates the next connection, after the pause. The pool's lock is
        held.
        """
        other = self.next_dial
        # The other one may hang, or belong to the parent of a forked process.
        if other is not None and other is not dial and now < other.due + DIALS_FOR:
            return False
        self.next_dial, dial.due = dial, max(now, paused_until)
        return True

    def end_turn(self, dial: Dial) -> None:
        """Let another operation create the next connection."""
        if self.next_dial is dial:
            self.next_dial = None

    def note_rejection(self, now: float, *, by_server: bool = True, waiting: int = 0) -> None:
        """Start a pause, unless there is one already: several connections may be rejected at
        once.

        Args:
            now: Seconds.
            by_server: False if the connection was closed, which may have other reasons.
            waiting: The number of operations that wait for a connection.
        """
        self.empty_paused_until, self.sharing = 0.0, 0
        if by_server:
            self.sharing = waiting
            self.empty_paused_until = now + EMPTY_PAUSE * random.uniform(0.5, 1.0)  # noqa: S311 - as below
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
            raise _rejection(
                "no connection was opened for minPoolSize, because the overloaded server rejected "
                "the previous one; the pool tries again later"
            )

    def note_success(self) -> None:
        """End the pauses: the pool may grow again."""
        # One success may be luck while most connections are rejected. So the next pause will be
        # shorter, but not the shortest one again.
        self.rejected, self.paused_until = self.rejected // 2, 0.0
        self.empty_paused_until, self.sharing = 0.0, 0
        self.refills_rejected, self.refill_paused_until = 0, 0.0


def _rejection(text: str) -> OperationFailure:
    """Return pymongo's error of a connection that an overloaded server has rejected."""
    labels = [SYSTEM_OVERLOADED, RETRYABLE]
    return OperationFailure(text, REJECTED, {"errorLabels": labels, "code": REJECTED})


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield the methods of pools to wrap, and their interceptors."""
    if RecoveryStep.REJECTIONS not in runtime.config.disabled_recovery:
        for owner in driver.clients.classes("pool", "Pool"):
            yield owner, driver.selection.HANDSHAKE, PausedDialing()


class Dial(Entered):
    """One connection that a pool is about to create."""

    __slots__ = (
        "dialing",
        "due",
        "is_refill",
        "latest",
        "longest_pause_ends",
        "was_reused",
    )

    def __init__(self, pool: Pool, dialing: Dialing, *, is_refill: bool) -> None:
        super().__init__(pool)
        self.dialing = dialing
        self.is_refill = is_refill
        """True if it is for ``minPoolSize`` and not for an operation."""
        self.was_reused = False
        """True if the operation got another connection instead."""
        self.due = 0.0
        """The time at which the connection is created, if this dial has the turn. This and the
        following are times on the monotonic clock.
        """
        now, remaining = time.monotonic(), driver.csot.remaining()
        self.latest = math.inf if remaining is None else now + SHARE * remaining
        """The time until which the operation waits."""
        limit = driver.dialing.wait_queue_timeout(pool)
        # With a short waitQueueTimeoutMS, those that queue behind this one would run out of time,
        # so the pool does not pause.
        self.longest_pause_ends = math.inf if limit is None else now + SHARE * limit


class PausedDialing(Interceptor):
    """Wraps the method with which a pool creates a connection."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Dial | None:
        pool = args[0]
        if driver.dialing.is_monitor_pool(pool):
            return None
        # pymongo passes no handler if its background task fills the pool up.
        handler = args[1] if len(args) > 1 else kwargs.get("handler")
        return Dial(pool, driver.dialing.kept(pool, Dialing), is_refill=handler is None)

    def send(self, dial: Dial, original: Function, *args: Any, **kwargs: Any) -> Any:
        if dial.is_refill:
            dial.dialing.check_refill(time.monotonic())
        elif dial.dialing.rejected:
            connection = _wait_for_turn(dial.instance, dial)
            if connection is not None:
                dial.was_reused = True
                return connection
        dial.dialing.making.add(dial)
        return original(*args, **kwargs)

    async def send_async(self, dial: Dial, original: Function, *args: Any, **kwargs: Any) -> Any:
        """As ``send``, in a task."""
        if dial.is_refill:
            dial.dialing.check_refill(time.monotonic())
        elif dial.dialing.rejected:
            connection = await _wait_for_turn_async(dial.instance, dial)
            if connection is not None:
                dial.was_reused = True
                return connection
        dial.dialing.making.add(dial)
        return await original(*args, **kwargs)

    def succeeded(self, dial: Dial, connection: Connection) -> Connection:
        dial.dialing.making.discard(dial)
        dial.dialing.end_turn(dial)
        # A reused connection shows nothing about whether the server accepts new ones.
        if not dial.was_reused:
            dial.dialing.note_success()
        return connection

    def failed(self, dial: Dial | None, error: BaseException, *_: Any) -> BaseException:
        if dial is None:
            return error
        dialing, was_made = dial.dialing, dial in dial.dialing.making
        dialing.making.discard(dial)
        is_labeled = isinstance(error, PyMongoError) and error.has_error_label(SYSTEM_OVERLOADED)
        # Only a rejection by an overloaded server starts a pause.
        if was_made and is_labeled:
            now = time.monotonic()
            waiting = driver.dialing.count_waiting(dial.instance)
            dialing.note_rejection(now, by_server=is_rejection(error), waiting=waiting)
            if dial.is_refill:
                dialing.note_rejected_refill(now)
        dialing.end_turn(dial)
        return error


def _look(pool: Pool, dial: Dial) -> tuple[Connection | None, float]:
    """Return an idle connection or None, and the seconds to wait for one.

    Zero or less means that it is time to create a connection. The pool's lock is held.

    Raises:
        OperationFailure: The pool has no connection, and the one that the operation waited for was
            rejected.
    """
    connection, dialing, now = driver.dialing.take_idle(pool), dial.dialing, time.monotonic()
    has_others = driver.dialing.has_other_connections(pool, len(dialing.making))
    paused_until = dialing.paused_until if has_others else dialing.empty_paused_until
    # Without other connections and without a pause, waiting would be pointless: no connection can
    # be returned. The rejections may also have ended while this operation waited.
    may_dial = not dialing.rejected or not paused_until
    # Out of patience, or the pause is too long for those that queue behind: create a connection
    # now, as pymongo would.
    if connection or may_dial or now >= dial.latest or paused_until > dial.longest_pause_ends:
        return connection, 0.0
    if dialing.take_turn(dial, now, paused_until):
        return None, min(paused_until - now, dial.latest - now, TICK)
    if not has_others and dialing.sharing > 0:
        dialing.sharing -= 1
        raise _rejection(
            "no connection was opened, because the overloaded server rejected the previous one of "
            "this pool; another operation is about to try again"
        )
    return None, min(dial.latest - now, TICK)


def _wait_for_turn(pool: Pool, dial: Dial) -> Connection | None:
    """Return a connection that another operation has returned, or None if it is time to
    create one.
    """
    while True:
        with driver.dialing.condition(pool):
            connection, seconds = _look(pool, dial)
            if connection is None:
                if seconds <= 0:
                    return None
                driver.dialing.wait(pool, seconds)
                continue
        # Check the connection without the lock, as pymongo does: the check may take time. If it is
        # no longer usable, wait for another one.
        if driver.dialing.is_usable(pool, connection):
            return connection


async def _wait_for_turn_async(pool: Pool, dial: Dial) -> Connection | None:
    """As ``_wait_for_turn``, in a task."""
    while True:
        async with driver.dialing.condition(pool):
            connection, seconds = _look(pool, dial)
            if connection is None:
                if seconds <= 0:
                    return None
                await driver.dialing.wait_async(pool, seconds)
                continue
        if await driver.dialing.is_usable_async(pool, connection):
            return connection
