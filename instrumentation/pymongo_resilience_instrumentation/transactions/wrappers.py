"""What runs in place of a session's methods: each has one deadline, with_transaction as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from pymongo_resilience import blocks
from pymongo_resilience.errors import OperationTimeoutError
from pymongo_resilience.faults import logger
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.interception.call_around import call_around
from pymongo_resilience_instrumentation.operations.changes import ABORT, COMMIT
from pymongo_resilience_instrumentation.timeouts.errors import timed_out

from . import sessions, transaction_spans
from .sessions import TransactionDeadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymongo_resilience_instrumentation.interception.methods import Method, Wrapper
    from pymongo_resilience_instrumentation.runtime import Runtime

NOWHERE = ("", None)
"""A transaction may change any collection: no rule holds for it but one for all of them."""


def of_a_session(runtime: Runtime, asynchronous: bool) -> Iterator[tuple[str, Wrapper | Method]]:
    """What to wrap of a session's class, and with what.

    end_session is not there: it waits for nothing but the abort_transaction that it calls.
    """
    yield "start_transaction", transaction_spans.start_transaction(runtime, asynchronous)
    yield "with_transaction", (_async_whole if asynchronous else _whole)(runtime)
    yield "commit_transaction", _end(runtime, COMMIT, asynchronous, anew=False)
    yield "abort_transaction", _end(runtime, ABORT, asynchronous, anew=True)


def start_session(
    wrapped: Callable[..., Any], _client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Takes the option that is ours before the driver refuses it; also while all is switched off.

    The same for both kinds of client: neither waits for anything here.
    """
    kwargs, default = sessions.take_default(kwargs)
    session = wrapped(*args, **kwargs)
    try:
        sessions.set_default(session, default)
    except Exception:
        logger.exception("internal error in pymongo-resilience after a session was started")
    return session


def _end(runtime: Runtime, operation: str, asynchronous: bool, *, anew: bool) -> Method:
    """A commit or an abort. ``anew``: it has the whole timeout, whatever has passed.

    pymongo 4.20 sends no abort once the deadline is over, and says nothing: the transaction stays
    open on the server, and keeps its locks.
    """

    def begin(given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Call | None:
        session = given[0]
        client = session.client
        if runtime.nested(client):
            return None
        call = Call(client, operation, NOWHERE)
        call.unknown_concern = True
        call.bound = sessions.default_of(session)
        call.transaction = sessions.transaction_of(session)
        call.ends = transaction_spans.span_of(session)
        runtime.enter(call, anew=anew)
        runtime.start_span(call, call.ends)
        if call.timeout is not None and not anew:
            runtime.deprecated.of_commit(call, session)
        return call

    return call_around(runtime, begin, asynchronous)


class _Transaction:
    """One with_transaction under a deadline. Belongs to one thread or task."""

    def __init__(self, seconds: float, *, owns_retries: bool) -> None:
        """``owns_retries``: whether retries are decided here."""
        self._owns_retries = owns_retries
        self._outside = driver.deadline.RunningTimeout.in_force()
        self.timeout = driver.deadline.RunningTimeout.begin(seconds)
        self._deadline = TransactionDeadline(self.timeout, blocks.timed(), driver.deadline.now())
        self._runs = 0
        self._raised: PyMongoError | None = None

    def around(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The callback, with its session under the deadline, and all else as it was outside."""

        def inside(session: Any) -> Any:
            try:
                self._enter(session)
                with self._outside.resume():
                    return callback(session)
            except PyMongoError as error:
                self._raised = error
                raise
            finally:
                sessions.leave_transaction(session)

        return inside

    def around_async(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def inside(session: Any) -> Any:
            try:
                self._enter(session)
                with self._outside.resume():
                    return await callback(session)
            except PyMongoError as error:
                self._raised = error
                raise
            finally:
                sessions.leave_transaction(session)

        return inside

    def _enter(self, session: Any) -> None:
        self._runs += 1
        self._raised = None
        sessions.enter_transaction(session, self._deadline)

    def ended_by_time(self, error: PyMongoError) -> PyMongoError | None:
        """The error to raise for one of the driver's that ended it for lack of time."""
        try:
            return self._ended_by_time(error)
        except Exception:
            logger.exception("internal error in pymongo-resilience with the error of a transaction")
            return None

    def _ended_by_time(self, error: PyMongoError) -> PyMongoError | None:
        raised, self._raised = self._raised, None
        seconds = self.timeout.seconds
        if not seconds or not error.timeout or not self._owns_retries:
            return None
        if raised is error or isinstance(error, OperationTimeoutError):
            return None
        # The driver puts an error of its own around the one that it would have tried again after.
        last = error.__cause__ if isinstance(error.__cause__, PyMongoError) else error
        return timed_out(
            error,
            timeout_s=seconds,
            elapsed_s=driver.deadline.now() - self._deadline.began,
            attempts=self._runs,
            name="with_transaction",
            reasons=getattr(last, "retry_reasons", ()),
            server=getattr(last, "server", None),
            stage=classify.stage_of(last),
        )


def _begin(runtime: Runtime, session: Any) -> _Transaction | None:
    """None where it has no deadline: then all is as the driver has it."""
    if not runtime.enabled_flag.acts():
        return None
    try:
        seconds, _ = runtime.timeout_of(session.client, NOWHERE, sessions.default_of(session))
        return None if seconds is None else _Transaction(seconds, owns_retries=runtime.owns_retries)
    except Exception:
        logger.exception("internal error in pymongo-resilience before a transaction")
        return None


def _whole(runtime: Runtime) -> Wrapper:
    def wrapper(
        wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        transaction = _begin(runtime, session)
        if transaction is None:
            return wrapped(*args, **kwargs)
        args, kwargs = _with_callback(transaction.around, args, kwargs)
        timeout = transaction.timeout.resume()
        try:
            with timeout:
                return wrapped(*args, **kwargs)
        except PyMongoError as error:
            ended = transaction.ended_by_time(error)
            if ended is None:
                raise
            raise ended from error
        except BaseException as error:
            # Once more: an exception of a signal handler may have struck while they were left.
            timeout.__exit__(None, error, None)
            sessions.leave_transaction(session)
            raise

    return wrapper


def _async_whole(runtime: Runtime) -> Wrapper:
    async def wrapper(
        wrapped: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        transaction = _begin(runtime, session)
        if transaction is None:
            return await wrapped(*args, **kwargs)
        args, kwargs = _with_callback(transaction.around_async, args, kwargs)
        timeout = transaction.timeout.resume()
        try:
            with timeout:
                return await wrapped(*args, **kwargs)
        except PyMongoError as error:
            ended = transaction.ended_by_time(error)
            if ended is None:
                raise
            raise ended from error
        except BaseException as error:
            # Once more: an exception of a signal handler may have struck while they were left.
            timeout.__exit__(None, error, None)
            sessions.leave_transaction(session)
            raise

    return wrapper


def _with_callback(
    around: Callable[[Callable[[Any], Any]], Callable[[Any], Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (around(args[0]), *args[1:]), kwargs
    if "callback" in kwargs:
        return args, {**kwargs, "callback": around(kwargs["callback"])}
    return args, kwargs


def within_time_limit(runtime: Runtime) -> Wrapper:
    """Whether with_transaction may repeat something after a pause: the deadline alone says it.

    pymongo's own limit of 120 s is for those without a deadline. Its pause, of half a second at
    most, may not end after the deadline either.
    """

    def wrapper(
        wrapped: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        left = driver.deadline.remaining() if runtime.enabled_flag.on else None
        if left is None:
            return wrapped(*args, **kwargs)
        pause: float = args[1] if len(args) > 1 else kwargs.get("backoff", 0)
        return left > pause

    return wrapper
