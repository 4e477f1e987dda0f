"""What killCursors and endSessions share: the engine repeats them, since pymongo sends them past
its own retry loop.

Source: Client Backpressure, "Driver mechanisms subject to the retry policy": all that the driver
sends, but for monitoring and connection establishment. Other errors end them, as in pymongo.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pymongo.errors import ServerSelectionTimeoutError

from pymongo_resilience.policies.policy import NOTHING, Policy
from pymongo_resilience.rules.retried_operation import NO_DATA, Kind, Operation
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.calls import BEGINNING, Call
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.interception.interceptor import Interceptor

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.policies.namespaces import NamespaceRules
    from pymongo_resilience.rules.budget import RetryBudget
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retry_rules import Rule
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime


class CleanupCall(Call):
    """One of them in progress: none of the public API, though it has a span."""

    has_operations = False

    def __init__(
        self, client: object, operation: str, database: str, collection: str | None
    ) -> None:
        super().__init__(client, operation, (database, collection))
        self.public = self.reads_inside = False
        self.unknown_concern = True
        self.address: Address | None = None
        """Of the server it was sent to."""
        self.ignored_error: Exception | None = None
        """What endSessions failed with, and pymongo keeps to itself."""


class Cleanup:
    """Work for both executors: one command, in one thread or task."""

    send: Callable[[], Any]
    """The driver's own, with its arguments; raises what it fails with."""

    def __init__(
        self, call: CleanupCall, executor: Any, rules: NamespaceRules, budget: RetryBudget | None
    ) -> None:
        self.call = call
        self.executor = executor
        self.budget = budget
        self._rules = rules

    def attempt(self) -> Any:
        return self.send()

    def classify(self, error: Exception, operation: Operation) -> Failure:  # noqa: ARG002 - the protocol's shape, as below
        address = self.call.address
        return classify.failure_of(
            error,
            classify.Attempt(
                # Nothing else is known; in doubt it counts as sent.
                reached_connection=not isinstance(error, ServerSelectionTimeoutError),
                carried_txn_number=False,
                server=None if address is None else address_text(address),
                # Shortens delays after other errors, and those end it.
                min_rtt=0.0,
            ),
        )

    def release_attempt(self, failure: Failure) -> None:
        """Nothing is held between two attempts."""

    def prepare(self, failure: Failure, operation: Operation) -> None:
        """Nothing to do: a cursor has one server, and any will do for endSessions."""

    def final_error(self, failure: Failure, rule: Rule, operation: Operation) -> Exception:  # noqa: ARG002
        return failure.error

    def undecided(self, error: Exception) -> None:
        """It is raised."""

    def _operation(self, *, enabled: bool, block: Policy = NOTHING, **more: Any) -> Operation:
        call = self.call
        policy = block.over(self._rules.policy_of(call.database, call.collection))
        own = {"max_retries": driver.clients.max_retries(call.client)}
        return Operation(
            name=call.operation,
            namespace=call.namespace,
            kind=Kind.CLEANUP,
            strategy=self._rules.strategy if policy.strategy is None else policy.strategy,
            retries_enabled=enabled,
            budget=self.budget,
            data=NO_DATA if policy.data is None else policy.data,
            **own | more,
        )


class CleanupInterceptor(Interceptor):
    """``enter`` returns the Cleanup."""

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        self.runtime = runtime
        self.asynchronous = asynchronous
        self.executor: Any = runtime.async_executor if asynchronous else runtime.executor

    def send(self, work: Cleanup, original: Function, *given: Any, **kwargs: Any) -> Any:
        work.send = functools.partial(original, *given, **kwargs)
        return work.executor.run(work)

    def undo(self, work: Any, around: Call | None, error: BaseException) -> None:
        calls.undo(work if work is BEGINNING else work and work.call, around, error)
