"""Sessions: the default timeout of one, and what runs in place of its methods.

Each method has one deadline, with_transaction as a whole.
Source: Client Side Operations Timeout, "Sessions".
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
from pymongo_resilience.option_types import TIMEOUT_MS, shown
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy
from pymongo_resilience.rules.retry_rules import is_over
from pymongo_resilience.timeout_source import TimeoutSource
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.deferred import defer
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
# A private attribute of the session: changed by others, transactions would end too soon or late.
_DEFAULT = "_pymongo_resilience_default"
_WITHIN = "_pymongo_resilience_within"
"""The attribute of a session that shows that a with_transaction with a deadline runs on it."""
ABORT_GRACE = 1.0
"""Seconds that the abort of a with_transaction has after its deadline. The specification gives it
the whole timeout again; but with_transaction would then return up to that much late, and without a
word about it, since the driver ignores the errors of aborts. What is not answered in this time is
left to the background task, which sends it again."""
_INTERRUPTED = "_pymongo_resilience_interrupted"
"""Of a session whose last commit was interrupted."""
NOWHERE = ("", None)
"""A transaction may change any collection: no rule holds for it but one for all of them."""


def wrapped(runtime: Runtime) -> Iterator[Row]:
    """What to wrap of sessions, and with what."""
    for owner in driver.clients.classes("client_session", "*ClientSession"):
        asynchronous = is_async(vars(owner)["with_transaction"])
        spans = runtime.telemetry.command_spans
        if spans is not None:
            yield owner, "start_transaction", transaction_spans.StartTransaction(spans.tracer)
            for name in ("end_session", "__aexit__" if asynchronous else "__exit__"):
                yield owner, name, transaction_spans.EndSession()
        yield owner, "with_transaction", WithTransaction(runtime, asynchronous)
        yield owner, "commit_transaction", EndTransaction(runtime, COMMIT)
        yield owner, "abort_transaction", EndTransaction(runtime, ABORT)
    if runtime.owns_retries:
        for module, _ in driver.clients.each_api("client_session"):
            yield module, driver.sessions.WITHIN_TIME_LIMIT, WithinTimeLimit()


class StartSession(Interceptor):
    """Takes the option that is ours before the driver refuses it, also while switched off."""

    def wrapper(self, flag: EnabledFlag, asynchronous: bool) -> Wrapper:  # noqa: ARG002 - as above
        return super().wrapper(EnabledFlag(on=True), asynchronous)

    def enter(self, _given: tuple[Any, ...], kwargs: dict[str, Any]) -> Entered:
        """Raises ConfigurationError (pymongo's) for what is no timeout."""
        given = kwargs.get(OPTION)
        if given is not None and not TIMEOUT_MS.legal(given):
            raise ConfigurationError(f"{OPTION}={shown(given)}: expected {TIMEOUT_MS.allowed}")
        return Entered(EMPTY_POLICY if given is None else Policy(timeout_ms=given))

    def send(self, _entered: Entered, original: Function, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop(OPTION, None)
        return original(*args, **kwargs)

    def succeeded(self, entered: Entered, session: Session) -> Session:
        setattr(session, _DEFAULT, entered.instance)
        return session


class _LeftOpen(Entered):
    """An abort in a coroutine that is being closed: it can wait for no reply."""


class EndTransaction(OperationInterceptor):
    """A commit or an abort. An abort that the application calls has the whole timeout, whatever has
    passed, and one of with_transaction what is left of it, or ``ABORT_GRACE``: pymongo 4.20 sends
    none once the deadline is over, without an error, and the transaction keeps its locks."""

    runtime: Runtime

    def __init__(self, runtime: Runtime, operation: str) -> None:
        super().__init__(runtime)
        self._operation = operation

    async def send_async(
        self, entered: Entered | Operation, original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        if not isinstance(entered, _LeftOpen):
            return await original(*args, **kwargs)
        session = entered.instance
        opened = driver.sessions.open_transaction(session)
        defer(partial(self.runtime.clients.of(session.client).leave_open, opened))
        return None

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | Operation | None:
        session, runtime = args[0], self.runtime
        if (
            self._operation == ABORT
            and runtime.owns_retries
            and runtime.clients.left_by_coroutine(session.client)
        ):
            return _LeftOpen(session)
        if in_progress.in_foreign_call():
            return None
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
                is_commit = self._operation == COMMIT
                if is_commit and driver.sessions.may_be_committed(session, code):
                    driver.sessions.label_unknown_result(error)
                _state_outcome(error)
        elif self._operation == COMMIT:
            if self.runtime.owns_retries:
                setattr(session, _INTERRUPTED, True)
        elif self.runtime.owns_retries:
            opened = driver.sessions.open_transaction(session, aborted=True)
            defer(partial(self.runtime.clients.of(session.client).leave_open, opened))
        return super().failed(entered, error) if isinstance(entered, Operation) else error


def _state_outcome(error: PyMongoError) -> None:
    """Add to the text of a commit's error what became of the transaction; once, since the same
    error may be raised again."""
    if isinstance(error, WriteConcernError):
        # The commit ran, whatever its labels say: a new transaction would be a second.
        driver.selection.forget_transient(error)
        outcome = "the transaction was committed, but its write concern was not satisfied"
    elif error.has_error_label(transaction_spans.UNKNOWN_RESULT):
        outcome = "whether the transaction was committed is unknown"
    else:
        return
    text = error.args[0] if error.args else None
    if isinstance(text, str) and outcome not in text:
        error.args = (f"{text} ({outcome})", *error.args[1:])


class _Transaction(Interceptor):
    """One with_transaction under a deadline, for one thread or task; around its callback: the
    session is under the deadline there, and all else as it was outside."""

    def __init__(self, session: Session, seconds: float, source: TimeoutSource, name: str) -> None:
        """``source``: who set the timeout. ``name``: what the error says is timed out."""
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
        """The error to raise for one of the driver's that ended it for lack of time."""
        raised, self._raised = self._raised, None
        seconds, ours = self.timeout.seconds, isinstance(error, OperationTimeoutError)
        if not seconds or not error.timeout or raised is error or ours:
            return None
        # The driver puts an error of its own around the one that it would have tried again after.
        # The cause of a failed selection is what the monitors found.
        is_around = not isinstance(error, ServerSelectionTimeoutError)
        last = error.__cause__ if is_around and isinstance(error.__cause__, PyMongoError) else error
        left = self.timeout.ends - driver.csot.now()
        if last is error and not is_over(left, seconds, classify.stage_of(error)):
            return None  # it was a limit of the server or the application
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
    """The whole of it. Without a deadline all is as the driver has it, except that an interrupted
    one is aborted."""

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
        if args:
            return original(session, outer(args[0]), *args[1:], **kwargs)
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
            self._abort_later(args[0])
        elif transaction is not None:
            return transaction.ended_by_time(error) or error
        return error

    def _abort_later(self, session: Session) -> None:
        if vars(session).pop(_INTERRUPTED, False) or session.in_transaction:
            opened = driver.sessions.open_transaction(session, aborted=True)
            defer(partial(self._runtime.clients.of(session.client).leave_open, opened))


class WithinTimeLimit(Interceptor):
    """Whether with_transaction may repeat something after a pause: under a deadline that alone says
    it, and not pymongo's own limit of 120 s. What has found no time for another attempt has none
    for a repetition."""

    def enter(self, _given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | None:
        left = driver.csot.remaining()
        return None if left is None else Entered(left)

    def send(self, entered: Entered, _original: Function, *args: Any, **kwargs: Any) -> bool:
        left: float = entered.instance
        pause: float | None = args[1] if len(args) > 1 else kwargs.get("backoff")
        if pause is None:
            # After an error, which is the one being handled; before a pause it is another's.
            return left > 0 and not isinstance(exception(), OperationTimeoutError)
        return left > pause


def _atomic_write_of(session: Session) -> Operation | None:
    """The operation that the session's transaction is a part of."""
    operation = in_progress.current()
    return operation if operation is not None and operation.client is session.client else None


def default_of(session: Session) -> Policy:
    """What commit_transaction, abort_transaction, with_transaction and end_session have."""
    return getattr(session, _DEFAULT, EMPTY_POLICY)
