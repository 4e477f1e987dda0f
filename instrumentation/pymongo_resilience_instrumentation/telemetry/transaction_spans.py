"""The span of a transaction: from ``start_transaction`` to the end of its commit or abort.

A commit whose result is unknown may be called again and leaves it open; what ends it then is that
call, the session's next transaction, ``end_session()``, or the end of the process. Where a session
is collected, its span ends with the next operation: see ``deferred``.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Span, SpanKind, Tracer
from pymongo.errors import PyMongoError

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.internal_errors import foreign, shielded
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.deferred import defer, run_deferred
from pymongo_resilience_instrumentation.interceptor import Entered, Function, Interceptor, Wrapper
from pymongo_resilience_instrumentation.operations import ABORT, COMMIT

from . import semconv
from .client_tracing import tracing_of
from .operation_spans import end_span

# A private attribute of the session: it must live exactly as long.
_SPAN = "_pymongo_resilience_transaction_span"
UNKNOWN_RESULT = "UnknownTransactionCommitResult"


class TransactionSpan:
    """One transaction's. Ended once; kept alive while it is open."""

    __slots__ = ("_open", "_quotes", "_session", "_unknown", "span")

    def __init__(
        self, span: Span, session: object, quotes: bool, still_open: set[TransactionSpan]
    ) -> None:
        self.span = span
        self._quotes = quotes
        self._unknown = False
        self._open = still_open
        # The last of them: an exception of a signal handler may leave it at that.
        self._session: Callable[[], Any] = weakref.ref(
            session, lambda _: defer(partial(self.end, ended_ns=time.time_ns()))
        )
        still_open.add(self)
        setattr(session, _SPAN, self)

    def end(
        self,
        error: BaseException | None = None,
        operation: str | None = None,
        ended_ns: int | None = None,
    ) -> None:
        """After a commit or an abort, with what that ended with.

        ``operation``: which of both; None where the transaction was left without either.
        ``ended_ns``: since the epoch; None is now.
        """
        if isinstance(error, PyMongoError) and error.has_error_label(UNKNOWN_RESULT):
            self._unknown = True
            return
        if self not in self._open:
            return
        self._open.discard(self)
        session = self._session()
        # Without its reference, nothing is left for later once the session is collected.
        self._session = lambda: None
        if session is not None:
            with suppress(AttributeError):
                delattr(session, _SPAN)
        self.span.set_attribute(semconv.OUTCOME, self._outcome(operation, error))
        calls.reported(end_span, self.span, error, self._quotes, ended_ns)

    def _outcome(self, operation: str | None, error: BaseException | None) -> str:
        if operation == ABORT:
            return "aborted"
        if operation == COMMIT and error is None:
            return "committed"
        if operation == COMMIT and isinstance(error, PyMongoError):
            return "failed"
        return "unknown" if operation == COMMIT or self._unknown else "unfinished"


class TransactionSpans:
    """Thread- and task-safe: a session is used by one at a time, and a set's methods are atomic."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: set[TransactionSpan] = set()

    def start(self, session: Any) -> None:
        before = span_of(session)
        if before is not None:
            before.end()
        tracing = tracing_of(session.client)
        if not (tracing.enabled and is_instrumentation_enabled()):
            return
        attributes = {"db.system.name": "mongodb"}
        start = partial(self._tracer.start_span, kind=SpanKind.CLIENT, attributes=attributes)
        span = calls.reported(foreign, start, "transaction")
        TransactionSpan(span, session, tracing.quotes, self._open)
        # As late as can be: what is registered last runs first, so before an SDK shuts down.
        atexit.unregister(self.end_all)
        atexit.register(self.end_all)

    def end_all(self) -> None:
        """No span stays open: the process exits, or the instrumentation ends."""
        run_deferred()
        for each in list(self._open):
            each.end()

    def close(self) -> None:
        self.end_all()
        atexit.unregister(self.end_all)

    def reset_after_fork(self) -> None:
        """In a forked child: a transaction in progress is the parent's, which ends its span."""
        self._open.clear()


def span_of(session: object) -> TransactionSpan | None:
    """That of the transaction which the session is in, or whose commit is called again."""
    found: TransactionSpan | None = getattr(session, _SPAN, None)
    return found


def parent_of(session: Any) -> TransactionSpan | None:
    """What an operation with the session is in, where that is a transaction."""
    found = span_of(session)
    return found if found is not None and session.in_transaction else None


class StartTransaction(Interceptor):
    """Nothing is sent, and nothing may fail but what fails in the driver."""

    def __init__(self, spans: TransactionSpans) -> None:
        self._spans = spans

    def succeeded(self, entered: Entered, result: object) -> Any:
        with shielded("after start_transaction"):
            call = calls.current()
            # One that is an operation as a whole has that operation's span.
            if call is None or call.whole is None:
                self._spans.start(entered.instance)
        return result


def end_session(enabled_flag: EnabledFlag) -> Wrapper:
    """A session's ``end_session()``, and the end of its block. The abort of an open transaction
    ends its span; what is left is a commit whose result is unknown."""

    def wrapper(original: Function, session: Any, args: Any, kwargs: Any) -> Any:
        found: TransactionSpan | None = getattr(session, _SPAN, None)
        if found is not None and enabled_flag.acts() and not session.in_transaction:
            with shielded("before end_session"):
                found.end()
        return original(*args, **kwargs)

    return wrapper
