"""killCursors and endSessions as the engine's work: pymongo sends them past its own retry loop.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy": all that the driver
sends, but for monitoring and connection establishment. Other errors end them, as in pymongo.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from bson.int64 import Int64

from pymongo_resilience import policy
from pymongo_resilience.deadline import Deadline
from pymongo_resilience.operation import NO_DATA, Kind, Operation
from pymongo_resilience.orchestrator import Rule
from pymongo_resilience_instrumentation import driver, failures
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.calls import NO_DEADLINE, Call, DefaultTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.failure import Failure
    from pymongo_resilience.strategy import RetryStrategy
    from pymongo_resilience_instrumentation.addresses import Address

KILL_CURSORS = "killCursors"
END_SESSIONS = "endSessions"
END_SESSIONS_WINDOW = 0.5
"""Seconds after its first failure in which endSessions is repeated: close() must not take long."""
MOST_REQUEUES = 5
"""How often the background task takes up a cursor again."""
SHORTEST = 0.001
"""Seconds; a timeout of 0 would be none."""

logger = logging.getLogger("pymongo_resilience")


class CleanupCall(Call):
    """A killCursors or endSessions in progress: none of the public API, no operation span."""

    __slots__ = ("address", "swallowed")

    def __init__(self, client: Any, operation: str, database: str, collection: str | None) -> None:
        super().__init__(client, operation, database, collection, acknowledged=False, public=False)
        self.address: Address | None = None
        """Of the server it was sent to."""
        self.swallowed: Exception | None = None
        """What endSessions failed with, and pymongo keeps to itself."""


class BackgroundCall(Call):
    """One run of a client's background task over the cursors that wait to be killed."""

    __slots__ = ("is_last",)

    def __init__(self, client: Any) -> None:
        super().__init__(client, KILL_CURSORS, "", None, acknowledged=False, public=False)
        self.is_last = driver.kills_no_more(client)
        """The client is being closed: no later run takes up what this one leaves."""


class Cleanup:
    """Work for both executors: one command, in one thread or task."""

    send: Callable[[], Any]
    """The driver's own, with its arguments; raises what it fails with."""

    def __init__(self, call: CleanupCall, strategy: RetryStrategy, clock: Clock) -> None:
        self.call = call
        self._client = call.client
        self._strategy = strategy
        self._clock = clock

    def attempt(self) -> Any:
        return self.send()

    def describe(self, error: Exception, operation: Operation) -> Failure:  # noqa: ARG002 - the protocol's shape
        address = self.call.address
        return failures.describe(
            error,
            failures.Attempt(
                # Nothing tells; in doubt it counts as sent.
                reached_connection=True,
                carried_txn_number=False,
                server=None if address is None else address_text(address),
                # Shortens delays after other errors, and those end it.
                min_rtt=0.0,
            ),
        )

    def leave(self, failure: Failure) -> None:
        """Nothing is held between two attempts."""

    def prepare(self, failure: Failure, operation: Operation) -> None:
        """Nothing to do: a cursor has one server, and any will do for endSessions."""

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:  # noqa: ARG002 - the protocol's shape
        return failure.error

    def _operation(self, *, enabled: bool, **more: Any) -> Operation:
        return Operation(
            name=self.call.operation,
            namespace=self.call.namespace,
            kind=Kind.CLEANUP,
            strategy=self._strategy,
            retries_enabled=enabled,
            **more,
        )


class CloseNow(Cleanup):
    """The killCursors of a cursor's ``close()``."""

    def __init__(
        self,
        call: CleanupCall,
        strategy: RetryStrategy,
        clock: Clock,
        cursor_ids: Sequence[int],
        cursor_address: Any,
    ) -> None:
        super().__init__(call, strategy, clock)
        call.address = tuple(cursor_address)
        self._ids = cursor_ids
        self._cursor_address = cursor_address

    def operation(self) -> Operation:
        block = policy.current()
        made = self._operation(
            enabled=self._client.options.retry_reads,
            deadline=self._deadline(),
            data=NO_DATA if block.data is None else block.data,
        )
        made.strategy = block.strategy or made.strategy
        return made

    def _deadline(self) -> Deadline | None:
        timeout, left = driver.timeout_in_force(), driver.remaining()
        if timeout is None or left is None:
            return None
        return Deadline(self._clock, self._clock.now() + left, timeout)

    def interrupted(self) -> None:
        """Cancelled, perhaps while waiting: the background task sees to the cursor."""
        for cursor_id in self._ids:
            driver.kill_later(self._client, cursor_id, self._cursor_address)


class CloseInBackground(CloseNow):
    """The killCursors of the background task: a repetition is one more place in its queue.

    The rules judge the cursor that was put back least often; each one has a count of its own.
    """

    most_requeues = MOST_REQUEUES

    def operation(self) -> Operation:
        # The task of an async client inherits the policy of whoever used the client first.
        return self._operation(
            enabled=self._client.options.retry_reads,
            attempts=min(_requeues(cursor_id) for cursor_id in self._ids),
        )

    def describe(self, error: Exception, operation: Operation) -> Failure:
        # The next run comes when it comes, whatever the server would like.
        return replace(super().describe(error, operation), base_backoff=None)

    def prepare(self, failure: Failure, operation: Operation) -> None:  # noqa: ARG002 - the protocol's shape
        for cursor_id in self._ids:
            requeues = _requeues(cursor_id) + 1
            if requeues <= self.most_requeues:
                again = RequeuedId(cursor_id, requeues)
                driver.kill_later(self._client, again, self._cursor_address)
            else:
                self._log_dropped(1)

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:
        if rule is not Rule.ATTEMPTS:
            return super().final_error(failure, rule, operation)
        self._log_dropped(len(self._ids))
        return Dropped()

    def _log_dropped(self, count: int) -> None:
        logger.debug("%s %s: %d dropped", self.call.operation, self.call.namespace, count)


class EndSessions(Cleanup):
    """The endSessions of a client's ``close()``."""

    _window: Deadline | None = None

    def operation(self) -> Operation:
        left = driver.remaining()
        length = END_SESSIONS_WINDOW if left is None else min(END_SESSIONS_WINDOW, left)
        self._window = Deadline.after(self._clock, length)
        options = self._client.options
        return self._operation(
            # Sessions serve reads and writes alike: both, as for a command runner.
            enabled=options.retry_reads and options.retry_writes,
            retry_window=self._window,
        )

    def limit(self) -> AbstractContextManager[None]:
        """A repetition may not take longer than the window either; the first is the driver's."""
        if self._window is None:
            return NO_DEADLINE
        return DefaultTimeout(max(SHORTEST, self._window.remaining()))


class RequeuedId(Int64):
    """A cursor's id in the background task's queue that knows how often it was put back.

    So the count lives as long as the entry does, and nothing else has to be kept or cleaned up.
    """

    requeues: int

    def __new__(cls, cursor_id: int, requeues: int) -> RequeuedId:
        made = super().__new__(cls, cursor_id)
        made.requeues = requeues
        return made


def _requeues(cursor_id: int) -> int:
    return cursor_id.requeues if isinstance(cursor_id, RequeuedId) else 0


class Postponed(BaseException):
    """Ends the executor's run where it would wait; an Exception it would judge."""


class Dropped(Exception):  # noqa: N818 - a signal
    """The background task gives the cursors up: the server ends them when they time out."""


class NeverWaits:
    """A clock for the background task, which also keeps the pools: it must not sleep there."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now

    def sleep(self, seconds: float, /) -> NoReturn:  # noqa: ARG002 - the protocol's shape
        raise Postponed

    async def sleep_async(self, seconds: float, /) -> NoReturn:  # noqa: ARG002 - as above
        raise Postponed
