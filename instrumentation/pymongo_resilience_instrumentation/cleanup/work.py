"""killCursors and endSessions as the engine's work: pymongo sends them past its own retry loop.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy": all that the driver
sends, but for monitoring and connection establishment. Other errors end them, as in pymongo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bson.int64 import Int64
from pymongo.errors import ServerSelectionTimeoutError

from pymongo_resilience import blocks
from pymongo_resilience.deadline import SHORTEST, Deadline
from pymongo_resilience.faults import logger
from pymongo_resilience.operation import NO_DATA, Kind, Operation
from pymongo_resilience.policy import NOTHING, Policy
from pymongo_resilience.retry_rules import Rule
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.calls import NO_DEADLINE, Call
from pymongo_resilience_instrumentation.failures import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pymongo_resilience.budget import RetryBudget
    from pymongo_resilience.clock import Clock
    from pymongo_resilience.failure import Failure
    from pymongo_resilience.namespaces import NamespaceRules
    from pymongo_resilience_instrumentation.addresses import Address

KILL_CURSORS = "killCursors"
END_SESSIONS = "endSessions"
MOST_REQUEUES = 5
"""How often the background task takes up a cursor again."""
END_SESSIONS_WINDOW = 0.5
"""Seconds after its first failure in which endSessions is repeated: close() must not take long."""


class CleanupCall(Call):
    """A killCursors or endSessions in progress: none of the public API, though it has a span."""

    has_operations = False
    __slots__ = ("address", "swallowed")

    def __init__(self, client: Any, operation: str, database: str, collection: str | None) -> None:
        super().__init__(client, operation, (database, collection))
        self.public = self.reads_inside = False
        self.unknown_concern = True
        self.address: Address | None = None
        """Of the server it was sent to."""
        self.swallowed: Exception | None = None
        """What endSessions failed with, and pymongo keeps to itself."""


class Cleanup:
    """Work for both executors: one command, in one thread or task."""

    send: Callable[[], Any]
    """The driver's own, with its arguments; raises what it fails with."""

    def __init__(
        self, call: CleanupCall, rules: NamespaceRules, clock: Clock, budget: RetryBudget | None
    ) -> None:
        self.call = call
        self.budget = budget
        self._client = call.client
        self._rules = rules
        self._clock = clock

    def attempt(self) -> Any:
        return self.send()

    def describe(self, error: Exception, operation: Operation) -> Failure:  # noqa: ARG002 - the protocol's shape
        address = self.call.address
        return classify.describe(
            error,
            classify.Attempt(
                # Nothing else tells; in doubt it counts as sent.
                reached_connection=not isinstance(error, ServerSelectionTimeoutError),
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

    def _operation(self, *, enabled: bool, block: Policy = NOTHING, **more: Any) -> Operation:
        call = self.call
        said = block.over(self._rules.policy_of(call.database, call.collection))
        return Operation(
            name=call.operation,
            namespace=call.namespace,
            kind=Kind.CLEANUP,
            strategy=self._rules.strategy if said.strategy is None else said.strategy,
            retries_enabled=enabled,
            budget=self.budget,
            data=NO_DATA if said.data is None else said.data,
            **more,
        )


class RequeuedId(Int64):
    """A cursor's id in the background task's queue that knows how often it was sent in vain.

    So the count lives as long as the entry does, and nothing else has to be kept or cleaned up.
    """

    requeues: int

    def __new__(cls, cursor_id: int, requeues: int) -> RequeuedId:
        made = super().__new__(cls, cursor_id)
        made.requeues = requeues
        return made


class CloseNow(Cleanup):
    """The killCursors of a cursor's ``close()``."""

    configured = MOST_REQUEUES
    """How many retries the configuration allows."""

    def __init__(
        self,
        call: CleanupCall,
        rules: NamespaceRules,
        clock: Clock,
        budget: RetryBudget | None,
        *,
        cursor_ids: Sequence[int],
        cursor_address: Any,
    ) -> None:
        super().__init__(call, rules, clock, budget)
        call.address = tuple(cursor_address)
        self._ids = cursor_ids
        self._cursor_address = cursor_address
        self._attempts = 0
        self._out_of_attempts = False

    def attempt(self) -> Any:
        self._attempts += 1
        return self.send()

    def operation(self) -> Operation:
        return self._operation(
            enabled=self._client.options.retry_reads,
            block=blocks.current(),
            deadline=self._deadline(),
            max_retries=driver.clients.max_retries(self._client),
        )

    def _deadline(self) -> Deadline | None:
        timeout, left = driver.deadline.timeout_in_force(), driver.deadline.remaining()
        if timeout is None or left is None:
            return None
        return Deadline(self._clock, self._clock.now() + left, timeout)

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:
        self._out_of_attempts = rule is Rule.ATTEMPTS
        return super().final_error(failure, rule, operation)

    def succeeded(self) -> None:
        """The cursors are gone."""

    def leave_to_background(self) -> None:
        """It has what is left of the attempts: of an overloaded command there are so many in all,
        wherever it is sent from. After any other error, or when it was interrupted, one at least.
        """
        if self._out_of_attempts:
            self._log_dropped(len(self._ids))
            return
        requeues = min(self._attempts, self._most_requeues())
        for cursor_id in self._ids:
            again = RequeuedId(cursor_id, requeues)
            driver.clients.kill_later(self._client, again, self._cursor_address)

    def _most_requeues(self) -> int:
        own = driver.clients.max_retries(self._client)
        return min(MOST_REQUEUES, self.configured if own is None else own)

    def _log_dropped(self, count: int) -> None:
        logger.debug("%s %s: %d dropped", self.call.operation, self.call.namespace, count)


class EndSessions(Cleanup):
    """The endSessions of a client's ``close()``."""

    _window: Deadline | None = None

    def operation(self) -> Operation:
        left = driver.deadline.remaining()
        length = END_SESSIONS_WINDOW if left is None else min(END_SESSIONS_WINDOW, left)
        self._window = Deadline.after(self._clock, length)
        options = self._client.options
        return self._operation(
            # Sessions serve reads and writes alike: both, as for a command runner.
            enabled=options.retry_reads and options.retry_writes,
            retry_window=self._window,
            max_retries=driver.clients.max_retries(self._client),
        )

    def limit(self) -> AbstractContextManager[None]:
        """The first has the time of any operation, where there is a limit to that: without one,
        a close() waits for servers that are gone until serverSelectionTimeoutMS. A repetition may
        not take longer than the window either."""
        if self._window is None:
            return driver.deadline.Timeout(self.call.timeout) if self.call.timeout else NO_DEADLINE
        return driver.deadline.Timeout(max(SHORTEST, self._window.remaining()))
