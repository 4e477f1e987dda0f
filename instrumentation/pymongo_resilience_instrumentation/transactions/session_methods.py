"""Wraps the methods of sessions, and holds the default timeout of a session.

Each method has one deadline; with_transaction has a single one for everything in it. Source: Client
Side Operations Timeout, "Sessions".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from sys import exception
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import (
    ConfigurationError,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)

from pymongo_resilience.enabled_flag import EnabledFlag
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.open_transactions import Event
from pymongo_resilience.option_types import TIMEOUT_MS, shown
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy
from pymongo_resilience.rules.retry_rules import is_over
from pymongo_resilience.timeout_source import TimeoutSource
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.error_texts import Origin
from pymongo_resilience_instrumentation.interceptor import (
    Entered,
    Function,
    Interceptor,
    OperationInterceptor,
    Row,
    Wrapper,
    is_async,
)
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_operations import ABORT, COMMIT
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.telemetry import transaction_spans
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.timeout_errors import timed_out

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Session

T = TypeVar("T")

OPTION = "default_timeout_ms"
# A private attribute of the session. If the application could change it, transactions would end too
# early or too late.
_DEFAULT = "_pymongo_resilience_default"
_WITHIN = "_pymongo_resilience_within"
"""The attribute marks a session in a with_transaction with a deadline."""
ABORT_GRACE = 1.0
"""Seconds for the abort of a with_transaction after its deadline. The specification grants the
whole timeout again, but then with_transaction could return that much too late, and without any
sign, because pymongo ignores the errors of aborts. If there is no answer within this time, the
background task sends the abort again.
"""
_INTERRUPTED = "_pymongo_resilience_interrupted"
"""The attribute marks a session whose last commit was interrupted."""
NOWHERE = ("", None)
"""A transaction may write to any collection, so only namespace rules for all collections apply to
it.
"""


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """Yield the methods of sessions to wrap, and their interceptors."""
    for owner in driver.clients.classes("client_session", "*ClientSession"):
        asynchronous = is_async(vars(owner)["with_transaction"])
        spans = runtime.telemetry.command_spans
        if spans is not None:
            yield owner, "start_transaction", transaction_spans.StartTransaction(spans.tracer)
        yield owner, "with_transaction", WithTransaction(runtime, asynchronous)
        yield owner, "commit_transaction", EndTransaction(runtime, COMMIT)
        yield owner, "abort_transaction", EndTransaction(runtime, ABORT)
    if runtime.owns_retries:
        for module, _ in driver.clients.each_api("client_session"):
            yield module, driver.sessions.WITHIN_TIME_LIMIT, WithinTimeLimit()


def for_ended_sessions(runtime: Runtime) -> Iterator[Row]:
    """Yield the rest of ``wrapped``, once ``transaction_spans.sessions_used``."""
    if runtime.telemetry.command_spans is None:
        return
    for owner in driver.clients.classes("client_session", "*ClientSession"):
        asynchronous = is_async(vars(owner)["with_transaction"])
        for name in ("end_session", "__aexit__" if asynchronous else "__exit__"):
            yield owner, name, transaction_spans.EndSession()


class StartSession(Interceptor):
    """Removes the library's own option before pymongo refuses it, even while the library is off."""

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:  # noqa: ARG002 - always active
        return super().wrapper(EnabledFlag(on=True), asynchronous)

    def enter(self, _given: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered:
        """Raise pymongo's ConfigurationError for an invalid timeout."""
        # From now on, the ends of sessions matter.
        transaction_spans.sessions_used.note()
        timeout_ms = kwargs.get(OPTION)
        if timeout_ms is not None and not TIMEOUT_MS.legal(timeout_ms):
            raise ConfigurationError(f"{OPTION}={shown(timeout_ms)}: expected {TIMEOUT_MS.allowed}")
        return Entered(EMPTY_POLICY if timeout_ms is None else Policy(timeout_ms=timeout_ms))

    def send(self, _entered: Entered, original: Function, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop(OPTION, None)
        return original(*args, **kwargs)

    def succeeded(self, entered: Entered, session: Session) -> Session:
        setattr(session, _DEFAULT, entered.instance)
        return session


class _LeftOpen(Entered):
    """An abort in a coroutine that is being closed, which cannot wait for a reply."""


class EndTransaction(OperationInterceptor):
    """Wraps commit and abort.

    An abort that the application calls gets the whole timeout, even if part of it has passed. An
    abort of with_transaction gets the rest of the timeout, but at least ``ABORT_GRACE``: pymongo
    4.20 silently does not send it after the deadline, and the transaction keeps its locks.
    """

    runtime: Runtime

    def __init__(self, runtime: Runtime, operation: str) -> None:
        super().__init__(runtime)
        self._operation = operation

    async def send_async(
        self, entered: Entered | Operation, original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        if not isinstance(entered, _LeftOpen):
            return await original(*args, **kwargs)
        # The coroutine is being closed and cannot await a reply.
        _note_end(self.runtime, entered.instance, Event.CLOSED)
        return None

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | Operation | None:
        session, runtime = args[0], self.runtime
        if (
            self._operation == ABORT
            and runtime.owns_retries
            and runtime.clients.left_by_coroutine(session.client)
        ):
            return _LeftOpen(session)
        # A listener or log handler uses a transaction; leave it to pymongo.
        if in_progress.in_foreign_call():
            return None
        # The transaction belongs to an atomic write, which is an operation with a timeout of its
        # own.
        if _atomic_write_of(session) is not None:
            seconds = driver.csot.active_timeout()
            if self._operation == COMMIT or not seconds:
                return Entered(session)
            least = max(driver.csot.remaining() or 0.0, min(seconds, ABORT_GRACE))
            return Entered(session, driver.csot.Timeout.from_now(least).resume())
        call = Call(
            session.client,
            self._operation,
            NOWHERE,
            session=session,
            block_policy=blocks.current(),
            bound_policy=default_of(session),
            is_cleanup=self._operation == ABORT,
            unknown_concern=True,
        )
        operation = Operation(call, transaction_span=transaction_spans.span_of(session))
        if self._operation != ABORT:
            runtime.begin(operation)
        elif _WITHIN in vars(session):
            runtime.begin(operation, at_least=ABORT_GRACE)
        else:
            runtime.begin(operation, whole_timeout=True)
        return operation

    def succeeded(self, entered: Entered | Operation, result: None) -> Any:
        return self.runtime.end(entered, result) if isinstance(entered, Operation) else result

    def failed(
        self,
        entered: Entered | Operation | None,
        error: BaseException,
        args: tuple[Any, ...],
        _kwargs: dict[str, Any],
    ) -> BaseException | None:
        session = args[0]
        if isinstance(error, PyMongoError):
            if self.runtime.owns_retries:
                code = classify.attribute(error, "code")
                # pymongo does not add the label UnknownTransactionCommitResult in all cases in
                # which the commit may have been applied.
                is_commit = self._operation == COMMIT
                if is_commit and driver.sessions.may_be_committed(session, code):
                    driver.sessions.label_unknown_result(error)
                _state_outcome(error)
        elif self._operation == COMMIT:
            if self.runtime.owns_retries:
                # A signal handler or a cancellation interrupted the commit, so it may not have been
                # sent.
                setattr(session, _INTERRUPTED, True)
        elif self.runtime.owns_retries:
            # An interrupted abort may not have been sent, but pymongo considers it done.
            _note_end(self.runtime, session, Event.INTERRUPTED)
        return super().failed(entered, error) if isinstance(entered, Operation) else error


def _note_end(runtime: Runtime, session: Session, event: Event) -> None:
    driver.sessions.note_end(runtime.clients.of(session.client).open_transactions, session, event)


def _state_outcome(error: PyMongoError) -> None:
    """Add to the text of a commit's error whether the transaction was committed.

    Only once, because the same error may be raised again.
    """
    if isinstance(error, WriteConcernError):
        # The commit ran, even if a label asks for a new transaction, which would apply everything
        # again.
        driver.selection.forget_transient(error)
        outcome = "the transaction was committed, but its write concern was not satisfied"
    elif error.has_error_label(transaction_spans.UNKNOWN_RESULT):
        outcome = "it is unknown whether the transaction was committed"
    else:
        return
    text = error.args[0] if error.args else None
    if isinstance(text, str) and outcome not in text:
        error.args = (f"{text} ({outcome})", *error.args[1:])


class _Transaction(Interceptor):
    """One with_transaction with a deadline. For one thread or task.

    It wraps the callback. Inside, the session is under the deadline, and everything else is as it
    was outside of with_transaction.
    """

    def __init__(self, session: Session, seconds: float, source: TimeoutSource, name: str) -> None:
        """Begin a transaction's deadline.

        Args:
            session: The session.
            seconds: The timeout.
            source: Who set the timeout.
            name: The name of the operation in the text of an error.
        """
        self.session = session
        self._name = name
        self._source = source
        self._outside = driver.csot.Timeout.active()
        self.timeout = driver.csot.Timeout.begin(seconds)
        self.deadline = self.timeout.resume(source)
        self._of_session = precedence.TransactionDeadline(
            self.timeout, blocks.timed(), driver.csot.now(), source
        )
        self._runs = 0
        self._raised: BaseException | None = None

    def enter(self, _given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        # pymongo calls the callback again for each retry of the transaction.
        self._runs += 1
        self._raised = None
        if self._source is not TimeoutSource.REQUEST:
            # The request's deadline applies to each operation anyway, beside a timeout that the
            # callback may give it.
            precedence.enter_transaction(self.session, self._of_session)
        return Entered(self.session, self._outside.resume())

    def succeeded(self, entered: Entered, result: T) -> T:
        precedence.leave_transaction(entered.instance)
        return result

    def failed(self, _entered: Entered | None, error: BaseException, *_: Any) -> BaseException:
        precedence.leave_transaction(self.session)
        self._raised = error
        return error

    def ended_by_time(self, error: PyMongoError) -> PyMongoError | None:
        """Return the timeout to raise for an error with which pymongo ended the transaction for
        lack of time.
        """
        raised, self._raised = self._raised, None
        seconds, ours = self.timeout.seconds, isinstance(error, OperationTimeoutError)
        # The callback's own error is not changed, even if it is a timeout.
        if not seconds or not error.timeout or raised is error or ours:
            return None
        # pymongo wraps the error after which it would have tried again in another one. But the
        # cause of a failed selection is an error of the monitors.
        is_around = not isinstance(error, ServerSelectionTimeoutError)
        last = error.__cause__ if is_around and isinstance(error.__cause__, PyMongoError) else error
        left = self.timeout.ends - driver.csot.now()
        if last is error and not is_over(left, seconds, classify.stage_of(error)):
            # A limit of the server or the application ended it, not the deadline.
            return None
        if isinstance(last, OperationTimeoutError):
            return last
        return timed_out(
            error,
            Origin(
                getattr(last, "server", None),
                classify.stage_of(last),
                self._runs,
                getattr(last, "retry_reasons", ()),
            ),
            timeout_s=seconds,
            elapsed_s=driver.csot.now() - self._of_session.began,
            name=self._name,
        )


class WithTransaction(Interceptor):
    """Wraps with_transaction. Without a deadline, it only aborts a transaction that was
    interrupted.
    """

    def __init__(self, runtime: Runtime, asynchronous: bool) -> None:
        self._runtime = runtime
        self._asynchronous = asynchronous

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Transaction | None:
        session = args[0]
        default = default_of(session)
        timeouts = self._runtime.timeouts
        seconds, source = timeouts.timeout_for_transaction(session.client, NOWHERE, default)
        if seconds is None:
            return None
        setattr(session, _WITHIN, True)
        operation = _atomic_write_of(session)
        name = operation.call.method if operation else "with_transaction"
        return _Transaction(session, seconds, source, name)

    def send(
        self,
        transaction: _Transaction,
        original: Function,
        session: Session,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        outer = partial(
            transaction.wrap, flag=self._runtime.enabled_flag, asynchronous=self._asynchronous
        )
        # pymongo's parameter may be passed by position or by keyword.
        if args:
            return original(session, outer(args[0]), *args[1:], **kwargs)
        # Without a callback, let pymongo raise its TypeError.
        if "callback" in kwargs:
            kwargs["callback"] = outer(kwargs["callback"])
        return original(session, **kwargs)

    def succeeded(self, transaction: _Transaction, result: T) -> T:
        vars(transaction.session).pop(_WITHIN, None)
        return result

    def failed(
        self,
        transaction: _Transaction | None,
        error: BaseException,
        args: tuple[Any, ...],
        _kwargs: dict[str, Any],
    ) -> BaseException:
        if transaction is not None:
            vars(transaction.session).pop(_WITHIN, None)
            precedence.leave_transaction(transaction.session)
        if not self._runtime.owns_retries:
            return error
        if not isinstance(error, PyMongoError):
            # A signal handler or a cancellation raised it. pymongo considers an interrupted commit
            # finished, although it may not have been sent.
            session = args[0]
            if vars(session).pop(_INTERRUPTED, False) or session.in_transaction:
                _note_end(self._runtime, session, Event.INTERRUPTED)
        elif transaction is not None:
            return transaction.ended_by_time(error) or error
        return error


class WithinTimeLimit(Interceptor):
    """Decides whether with_transaction may retry after a pause.

    Under a deadline, only the deadline decides, and not pymongo's own limit of 120 seconds. If
    there was no time for another attempt of a command, there is none for a retry of the
    transaction.
    """

    def enter(self, _given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | None:
        left = driver.csot.remaining()
        return None if left is None else Entered(left)

    def send(self, entered: Entered, _original: Function, *args: Any, **kwargs: Any) -> bool:
        remaining: float = entered.instance
        pause: float | None = args[1] if len(args) > 1 else kwargs.get("backoff")
        if pause is None:
            # pymongo calls this without a pause while it handles an error.
            return remaining > 0 and not isinstance(exception(), OperationTimeoutError)
        return remaining > pause


def _atomic_write_of(session: Session) -> Operation | None:
    """Return the operation that the session's transaction belongs to, if it is an atomic write."""
    operation = in_progress.current()
    return operation if operation is not None and operation.client is session.client else None


def default_of(session: Session) -> Policy:
    """Return the policy of the session itself: for commit, abort, with_transaction and
    end_session.
    """
    return getattr(session, _DEFAULT, EMPTY_POLICY)
