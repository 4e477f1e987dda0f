"""A pool whose new connections an overloaded server rejects makes no more of them for a moment.

A connection costs hello, login and, over TLS, a key exchange. pymongo 4.20 makes one whenever none
is idle, so operations that are retried under overload dial again and again: the dials take the
place of requests on the server, and slow down the client, whose connections are then busy for
longer. As long as the pool has other connections, an operation waits for one of these instead.
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
"""Seconds for which a pool makes no connection after the first rejection. Doubled by each
rejection that follows, with a random part so that not all clients dial at once."""
MAX_PAUSE = 1.0
"""Seconds; doubling ends here."""
REFILL_FIRST, REFILL_LONGEST = 1.0, 10.0
"""Seconds until the pool is filled up to ``minPoolSize`` again after the first rejection of such a
connection; doubled as well. pymongo tries once a second, or sends a server that it takes for lost
nothing for ten."""
SHARE = 0.5
"""The part of the time left that an operation waits at most; the rest is for a new connection."""

REJECTED = 462
"""IngressRequestRateLimitExceeded, of MongoDB 8.2 and newer."""


class Dialing:
    """Decides whether one pool makes connections at the moment.

    Thread- and task-safe: each step is one of a set's, or sets an attribute. A race costs a dial.
    """

    __slots__ = ("making", "paused_until", "refill_paused_until", "refills_rejected", "rejected")

    def __init__(self) -> None:
        self.making: set[object] = set()
        """One for each connection that is being made."""
        self.rejected = 0
        """How many in a row, at different times."""
        self.paused_until = 0.0
        self.refills_rejected = 0
        self.refill_paused_until = 0.0

    def note_rejected_refill(self, now: float) -> None:
        """Begin a pause of the connections for ``minPoolSize`` alone."""
        pause = min(REFILL_LONGEST, REFILL_FIRST * 2.0**self.refills_rejected)
        self.refills_rejected = min(self.refills_rejected + 1, 10)
        self.refill_paused_until = now + pause * random.uniform(0.75, 1.25)  # noqa: S311 - as below

    def note_rejection(self, now: float) -> None:
        """Begin a pause, unless there is one: several dials may be rejected together."""
        if now >= self.paused_until:
            pause = min(MAX_PAUSE, FIRST_PAUSE * 2.0**self.rejected)
            self.rejected = min(self.rejected + 1, 10)
            self.paused_until = now + pause * random.uniform(0.75, 1.25)  # noqa: S311 - no secret

    def check_refill(self, now: float) -> None:
        """Raise pymongo's error of a rejected connection in a pause of those for ``minPoolSize``.

        Only pymongo's background task gets it, which logs it and tries again a second later.
        """
        if now < self.refill_paused_until:
            text = "not connected for minPoolSize: the server rejected the last such connection"
            labels = [SYSTEM_OVERLOADED, RETRYABLE]
            raise OperationFailure(text, REJECTED, {"errorLabels": labels, "code": REJECTED})

    def note_success(self) -> None:
        """Let the pool grow again."""
        self.rejected, self.paused_until = 0, 0.0
        self.refills_rejected, self.refill_paused_until = 0, 0.0


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield what to wrap of pools, and with what."""
    if RecoveryStep.REJECTIONS not in runtime.config.disabled_recovery:
        for owner in driver.clients.classes("pool", "Pool"):
            yield owner, driver.selection.HANDSHAKE, PausedDialing()


class Dial(Entered):
    """One connection that is to be made."""

    __slots__ = ("dialing", "ends", "is_refill", "was_reused")

    def __init__(self, pool: Pool, dialing: Dialing, *, is_refill: bool) -> None:
        super().__init__(pool)
        self.dialing = dialing
        self.is_refill = is_refill
        """It is for ``minPoolSize``, and no operation's."""
        self.ends = 0.0
        """Until when the operation waits for a connection of others."""
        self.was_reused = False
        """It got one."""


class PausedDialing(Interceptor):
    """Before a pool makes a connection."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Dial | None:
        pool = args[0]
        if driver.dialing.is_monitor_pool(pool):
            return None
        handler = args[1] if len(args) > 1 else kwargs.get("handler")
        dial = Dial(pool, driver.dialing.kept(pool, Dialing), is_refill=handler is None)
        now = time.monotonic()
        if now < dial.dialing.paused_until and not dial.is_refill:
            limits = driver.csot.remaining(), driver.dialing.wait_queue_timeout(pool)
            ends = [now + SHARE * each for each in limits if each is not None]
            dial.ends = min([dial.dialing.paused_until, *ends])
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
        """The same in a task."""
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
        if isinstance(error, PyMongoError) and error.has_error_label(SYSTEM_OVERLOADED):
            now = time.monotonic()
            dial.dialing.note_rejection(now)
            if dial.is_refill:
                dial.dialing.note_rejected_refill(now)
        return error


def _look(pool: Pool, dialing: Dialing, ends: float) -> tuple[Connection | None, float]:
    """Return an idle connection, if there is one, and the seconds to wait for one; 0 or less if it
    is time to dial. The lock is held."""
    if not driver.dialing.has_other_connections(pool, len(dialing.making)):
        return None, 0.0
    return driver.dialing.take_idle(pool), ends - time.monotonic()


def _wait_for_idle(pool: Pool, dialing: Dialing, ends: float) -> Connection | None:
    """Return a connection that another operation has given back; None if it is time to dial."""
    while True:
        with driver.dialing.condition(pool):
            connection, seconds = _look(pool, dialing, ends)
            if connection is None:
                if seconds <= 0:
                    return None
                driver.dialing.wait(pool, seconds)
                continue
        if driver.dialing.is_usable(pool, connection):
            return connection


async def _wait_for_idle_async(pool: Pool, dialing: Dialing, ends: float) -> Connection | None:
    """The same in a task."""
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
