"""The killCursors of a client's background task, which also keeps the pools and must not sleep.

A repetition is one more place in the task's own queue, for its next run.
Source: Client Backpressure, "Driver mechanisms subject to the retry policy".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from pymongo_resilience.clock import Postponed
from pymongo_resilience.retry_rules import Rule
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.calls import Call

from .work import KILL_CURSORS, CloseNow, RequeuedId

if TYPE_CHECKING:
    from typing import Any

    from pymongo_resilience.clock import Clock
    from pymongo_resilience.failure import Failure
    from pymongo_resilience.operation import Operation

MOST_REQUEUES = 5
"""How often the background task takes up a cursor again."""


class BackgroundCall(Call):
    """One run of a client's background task over the cursors that wait to be killed."""

    has_operations = False
    __slots__ = ("is_last",)

    def __init__(self, client: Any) -> None:
        super().__init__(client, KILL_CURSORS, ("", None))
        self.public = self.reads_inside = False
        self.unknown_concern = True
        self.is_last = driver.clients.kills_no_more(client)
        """The client is being closed: no later run takes up what this one leaves."""


class CloseInBackground(CloseNow):
    """The killCursors of the background task: a repetition is one more place in its queue.

    The rules judge the cursor that was put back least often; each one has a count of its own.
    """

    def operation(self) -> Operation:
        # The task of an async client inherits the policy of whoever used the client first.
        return self._operation(
            enabled=self._client.options.retry_reads,
            attempts=self._fewest_requeues(),
            max_retries=self._most_requeues(),
        )

    def succeeded(self) -> None:
        """Gives back what the repetition cost; the executor took it for a first attempt."""
        if self.budget is not None and self._fewest_requeues():
            self.budget.never_repeated(overloaded=True)

    def _fewest_requeues(self) -> int:
        return min(_requeues(cursor_id) for cursor_id in self._ids)

    def describe(self, error: Exception, operation: Operation) -> Failure:
        # The next run comes when it comes, whatever the server would like.
        return replace(super().describe(error, operation), base_backoff=None)

    def prepare(self, failure: Failure, operation: Operation) -> None:  # noqa: ARG002 - the protocol's shape
        for cursor_id in self._ids:
            requeues = _requeues(cursor_id) + 1
            if requeues <= self._most_requeues():
                again = RequeuedId(cursor_id, requeues)
                driver.clients.kill_later(self._client, again, self._cursor_address)
            else:
                self._log_dropped(1)

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:
        if rule is not Rule.ATTEMPTS:
            return super().final_error(failure, rule, operation)
        self._log_dropped(len(self._ids))
        return Dropped()


def _requeues(cursor_id: int) -> int:
    return cursor_id.requeues if isinstance(cursor_id, RequeuedId) else 0


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
