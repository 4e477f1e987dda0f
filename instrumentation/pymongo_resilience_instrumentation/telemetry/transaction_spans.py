"""The span of a transaction, from ``start_transaction`` to the end of its commit or abort.

A commit with an unknown result may be called again, so it leaves the span open. Then that call, the
session's next transaction, ``end_session()``, or the end of the process ends it.
"""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Span, SpanKind, Tracer
from pymongo.errors import PyMongoError

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.first_use import FirstUse
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.deferred import at_exit, defer, run_at_exit, run_deferred
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Interceptor,
    Wrapper,
    outside_of_operations,
)
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_operations import ABORT, COMMIT

from . import semconv
from .client_tracing import tracing_of
from .observers import Observer

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Session

T = TypeVar("T")

# A private attribute of the session, so that the span lives exactly as long.
_SPAN = "_pymongo_resilience_transaction_span"
UNKNOWN_RESULT = "UnknownTransactionCommitResult"
"""The label of a commit that may or may not have been applied."""

sessions_used = FirstUse()
"""Notes the first session that the application starts. Only such sessions have transactions."""
open_spans: set[TransactionSpan] = set()
"""The open spans of this process. Each change is a single step, so thread- and task-safe."""


class TransactionSpan(Observer):
    """The span of one transaction. Observes its commit or abort, and ends once."""

    def __init__(self, span: Span, session: Session, quotes: bool) -> None:
        self.span = span
        self._quotes = quotes
        self._unknown = False
        self._session = weakref.ref(session, self._collected)
        open_spans.add(self)
        setattr(session, _SPAN, self)
        sessions_used.note()

    def _collected(self, _: weakref.ref[Session]) -> None:
        if self in open_spans:
            defer(partial(self.end, ended_ns=time.time_ns()))

    def ends(self, operation: Operation, error: BaseException | None) -> None:
        """Called after the commit or abort."""
        if isinstance(error, PyMongoError) and error.has_error_label(UNKNOWN_RESULT):
            self._unknown = True
        else:
            self.end(operation.name, error, operation.ended_ns)

    def end(
        self,
        operation: str | None = None,
        error: BaseException | None = None,
        ended_ns: int | None = None,
    ) -> None:
        """End the span.

        Args:
            operation: The commit or abort; None if the transaction was left without either.
            error: The error of the commit or abort.
            ended_ns: Nanoseconds since the epoch; None means now.
        """
        if self in open_spans:
            open_spans.discard(self)
            session = self._session()
            if session is not None:
                delattr(session, _SPAN)
            try:
                self.span.set_attribute(semconv.OUTCOME, self._outcome(operation, error))
                in_progress.call_foreign(semconv.end_span, self.span, error, self._quotes, ended_ns)
            finally:
                if self.span.is_recording():
                    in_progress.call_foreign_wrapped(self.span.end, ended_ns)

    def _outcome(self, operation: str | None, error: BaseException | None) -> str:
        if operation == ABORT:
            return "aborted"
        if operation == COMMIT and error is None:
            return "committed"
        if operation == COMMIT and isinstance(error, PyMongoError):
            return "failed"
        return "unknown" if operation == COMMIT or self._unknown else "unfinished"


def span_of(session: Session) -> TransactionSpan | None:
    """Return the span of the transaction that the session is in, or whose commit is called
    again.
    """
    found: TransactionSpan | None = getattr(session, _SPAN, None)
    return found if found in open_spans else None


def parent_of(session: Session) -> TransactionSpan | None:
    """Return the span of the transaction that an operation with the session belongs to, if any."""
    return span_of(session) if session.in_transaction else None


class StartTransaction(Interceptor):
    """Wraps ``start_transaction``. Sends nothing, and fails only if pymongo does."""

    def __init__(self, tracer: Tracer) -> None:
        self._start_span = partial(
            tracer.start_span, "transaction", kind=SpanKind.CLIENT,
            attributes={"db.system.name": "mongodb"},
        )  # fmt: skip

    def succeeded(self, entered: Entered, result: T) -> T:
        operation = in_progress.current()
        # The transaction of an atomic write is shown by the span of its operation.
        if operation is None or operation.client is not entered.instance.client:
            self._start(entered.instance)
        return result

    def _start(self, session: Session) -> None:
        before = span_of(session)
        if before is not None:
            before.end()
        tracing = tracing_of(session.client)
        if tracing.enabled and is_instrumentation_enabled():
            quotes = tracing.quotes
            span = in_progress.call_foreign_wrapped(self._start_span)
            try:
                TransactionSpan(span, session, quotes)
            except BaseException:
                in_progress.call_foreign_wrapped(span.end)
                raise
            if span.is_recording():
                run_at_exit()


def end_all() -> None:
    """End all spans, because the process exits or the instrumentation ends."""
    run_deferred()
    for each in list(open_spans):
        each.end()


at_exit.append(end_all)


class EndSession(Interceptor):
    """Wraps ``end_session()`` of sessions and the end of their blocks.

    If a transaction is open, pymongo aborts it, and the abort ends the span. After a commit with an
    unknown result, the span is still open and ends here.
    """

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:
        # Sessions that end inside of an operation are pymongo's implicit ones, or those of atomic
        # writes. None of them has such a span.
        return outside_of_operations(super().wrapper(flag, asynchronous))

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        session, *error = args
        found = span_of(session)
        if found is None or session.in_transaction:
            return
        if any(error):
            # The block was left by an exception, possibly because the garbage collector closes its
            # coroutine. Foreign code must not run then, so end the span later.
            defer(partial(found.end, ended_ns=time.time_ns()))
        else:
            found.end()
