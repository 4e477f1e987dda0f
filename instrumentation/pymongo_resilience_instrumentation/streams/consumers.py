"""The consumers of change streams: their arguments, and how they carry out each step."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConnectionFailure, InvalidOperation, PyMongoError
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.database import Database
from pymongo.write_concern import WriteConcern

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.events import StreamNotice, outlet
from pymongo_resilience.option_types import integer, one_of
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.stream_rules import (
    Change,
    Close,
    Delivery,
    ErrorKind,
    Handle,
    HandlerFailed,
    Load,
    Next,
    Open,
    Pause,
    Received,
    Save,
    Skip,
    Step,
    StreamError,
    StreamRules,
    consume,
)
from pymongo_resilience_instrumentation.failures import classify
from pymongo_resilience_instrumentation.failures.causes import terminal_cause
from pymongo_resilience_instrumentation.transactions.retry_transaction import run, run_async

from .tokens import AsyncCollectionTokens, CollectionTokens

HISTORY_LOST = frozenset({286})
FOREIGN_TOKEN = frozenset({260, 280, 40585, 40647, 40649, 50788, 50795, 50796, 50797, 50811, 50814})
"""InvalidResumeToken, ChangeStreamFatalError, and the codes of older servers for tokens that they
cannot parse or find."""
TOO_LARGE = frozenset({10334, 17280})
"""BSONObjectTooLarge, and KeyTooLong of older servers."""
CURSOR_LOST = frozenset({43, 136, 175, 237, 11601})
"""CursorNotFound, CappedPositionLost, QueryPlanKilled, CursorKilled, Interrupted."""
RESUMABLE = "ResumableChangeStreamError"
CONFIGURED_WRONG = frozenset({
    RetryReason.AUTHENTICATION_ERROR, RetryReason.TLS_ERROR, RetryReason.ACCESS_ERROR,
})  # fmt: skip
# ``_id`` is the resume token. The server ends a stream whose pipeline removes or changes it.
REDUCED = {"$project": {"_id": 1, "operationType": 1, "ns": 1, "documentKey": 1, "clusterTime": 1}}
TRANSACTION: dict[str, Any] = {"write_concern": WriteConcern("majority")}
SLICE = 0.1
"""During a pause, the seconds between two checks of whether ``stop()`` was called."""
RETRIES = integer(0, 1_000_000)
EVERY = integer(1, 1_000_000)
DELIVERIES = one_of(*Delivery)
ON_HANDLER_ERROR = one_of("stop", "skip")
ON_INVALIDATED = one_of("continue", "stop")
ON_LARGE_CHANGE = one_of("stop", "reduce")


def kind_of(error: Exception) -> ErrorKind:
    """Return what one of pymongo's errors means for a stream."""
    if not isinstance(error, PyMongoError):
        return ErrorKind.FINAL
    # Check these codes before the error's labels: opening the stream again would fail in the same
    # way.
    code = classify.attribute(error, "code")
    if code in HISTORY_LOST:
        return ErrorKind.HISTORY_LOST
    if code in FOREIGN_TOKEN:
        return ErrorKind.FOREIGN_TOKEN
    if code in TOO_LARGE:
        return ErrorKind.TOO_LARGE
    if isinstance(error, InvalidOperation):
        return ErrorKind.FINAL
    if terminal_cause(error) is not None:
        return ErrorKind.TERMINAL
    failure = classify.failure_of(error, classify.SENT)
    if failure.reason in CONFIGURED_WRONG:
        return ErrorKind.TERMINAL
    passes = (
        isinstance(error, ConnectionFailure)
        or error.timeout
        or error.has_error_label(RESUMABLE)
        or code in CURSOR_LOST
        or failure.reason is not RetryReason.UNKNOWN
    )
    return ErrorKind.PASSING if passes else ErrorKind.FINAL


class _Consumer:
    """The parts that the sync and the async consumer share."""

    _sources: tuple[type, ...]
    _collection_tokens: type
    _token_class: str

    def __init__(
        self,
        source: Any,
        handler: Callable[..., Any],
        *,
        name: str,
        tokens: Any,
        pipeline: Sequence[Mapping[str, Any]] = (),
        delivery: Literal["at_least_once", "exactly_once"] = "at_least_once",
        on_handler_error: Literal["stop", "skip"] = "stop",
        handler_retries: int = 0,
        on_skip: Callable[..., Any] | None = None,
        on_invalidated: Literal["continue", "stop"] = "continue",
        on_large_change: Literal["stop", "reduce"] = "stop",
        save_every: int = 1,
        **watch_options: Any,
    ) -> None:
        if not isinstance(source, self._sources):
            names = ", ".join(each.__name__ for each in self._sources)
            raise TypeError(
                f"{type(self).__name__} watches one of {names}, "
                f"not an object of type {type(source).__name__}"
            )
        if not callable(handler):
            raise TypeError(f"{type(self).__name__}: the handler must be callable")
        problems = [
            kind.problem(option, value)
            for option, kind, value in (
                ("delivery", DELIVERIES, delivery),
                ("on_handler_error", ON_HANDLER_ERROR, on_handler_error),
                ("handler_retries", RETRIES, handler_retries),
                ("on_invalidated", ON_INVALIDATED, on_invalidated),
                ("on_large_change", ON_LARGE_CHANGE, on_large_change),
                ("save_every", EVERY, save_every),
            )
            if not kind.legal(value)
        ]
        client = _client_of(source)
        if delivery == "exactly_once":
            stored: Any = tokens
            if not isinstance(tokens, self._collection_tokens):
                problems.append(
                    f'delivery="exactly_once": expected tokens={self._token_class}(...), which can '
                    "be stored in the handler's transaction"
                )
            elif stored.collection.database.client is not client:
                problems.append('delivery="exactly_once": expected tokens of the same client')
            if save_every != 1:
                problems.append('save_every: expected 1 with delivery="exactly_once"')
        if on_handler_error == "skip" and on_skip is None:
            needs = "needs on_skip, a function that records the change"
            problems.append(f'on_handler_error="skip" {needs}')
        reserved = {"resume_after", "start_after", "session", "pipeline"} & watch_options.keys()
        problems += [f"{each}: do not pass it; the consumer sets it" for each in sorted(reserved)]
        if problems:
            raise ConfigurationError(problems)
        if isinstance(tokens, self._collection_tokens):
            stored = tokens
            stored.belong_to(_watched(source))
        self.name = name
        self.handled = self.skipped = 0
        """Number of changes in all runs of this object."""
        self.is_stopping = False
        self._is_running = False
        self._source: Any = source
        self._client, self._handler = client, handler
        self._tokens, self._on_skip = tokens, on_skip
        self._pipeline, self._watch_options = list(pipeline), watch_options
        self._exactly = delivery == "exactly_once"
        self._stream: Any = None
        self._rules = StreamRules(
            name=name,
            delivery=Delivery(delivery),
            handler_retries=handler_retries,
            skips=on_handler_error == "skip",
            stops_when_invalidated=on_invalidated == "stop",
            reduces_large=on_large_change == "reduce",
            save_every=save_every,
        )

    def stop(self) -> None:
        """End ``run()`` after the change that is being handled; without one, within about a second.

        If ``run()`` has not begun, the next call returns at once. May be called from any thread,
        from a signal handler, and by the handler itself.
        """
        self.is_stopping = True

    def _begin(self) -> Any:
        if self._is_running:
            raise InvalidOperation(f"{self.name}: this consumer is already running")
        self._is_running = True
        return consume(self._rules, self, kind_of, time.monotonic, _notify)

    def _arguments(self, step: Open) -> dict[str, Any]:
        options: dict[str, Any] = {**self._watch_options}
        options["pipeline"] = [*self._pipeline, REDUCED] if step.is_reduced else self._pipeline
        if step.token is not None:
            # Unlike resume_after, start_after also accepts the token of an invalidation.
            options["start_after"] = step.token
            options.pop("start_at_operation_time", None)
        return options

    def _failed(self, error: Exception) -> Exception:
        """Return what to raise for an error of the handler. An error of an unavailable server is
        not the handler's fault, so it is returned unchanged."""
        if isinstance(error, StreamError) or kind_of(error) is ErrorKind.PASSING:
            return error
        return HandlerFailed(error)

    def _received(self, change: Change | None) -> Received:
        return Received(change, self._stream.resume_token)


def _notify(notice: StreamNotice) -> None:
    outlet.on_event(notice)


def _client_of(source: Any) -> Any:
    if isinstance(source, (MongoClient, AsyncMongoClient)):
        return source
    return (
        source.client if isinstance(source, (Database, AsyncDatabase)) else source.database.client
    )


def _watched(source: Any) -> str:
    """Return what is watched: ``"shop.orders"``, ``"shop"``, or ``"all databases"``."""
    if isinstance(source, (MongoClient, AsyncMongoClient)):
        return "all databases"
    return str(getattr(source, "full_name", source.name))


class ChangeConsumer(_Consumer):
    """Calls a function for each change of a collection, a database, or a deployment, and survives
    failures and restarts.

    For example:

        consumer = ChangeConsumer(
            orders, send_mail, name="mails", tokens=CollectionTokens(client.shop.tokens, "mails")
        )
        consumer.run()

    Args:
        source: A Collection, a Database or a MongoClient.
        handler: Called with each change. With ``exactly_once``, it is also given the session of
            the transaction, and must pass it to its writes. It may be called more than once for
            the same change.
        name: Name of the stream in logs and metrics.
        tokens: Stores the resume token: CollectionTokens, or an object with ``load()`` and
            ``save(token)``.
        pipeline: As for ``watch``.
        delivery: ``"at_least_once"`` stores the token after the handler has returned.
            ``"exactly_once"`` stores it in the transaction of the handler's writes.
        on_handler_error: What to do if the handler still fails after ``handler_retries``.
            ``"stop"`` raises its error, ``"skip"`` calls ``on_skip`` and continues.
        handler_retries: How often to call the handler again for a change, with growing pauses.
        on_skip: Called with the change and the error, and with ``exactly_once`` also with the
            session.
        on_invalidated: What to do after the collection was dropped or renamed. ``"continue"``
            watches the next collection of that name, ``"stop"`` raises StreamInvalidatedError.
        on_large_change: What to do with a change of more than 16 MB. ``"stop"`` raises
            ChangeTooLargeError, ``"reduce"`` passes it to the handler without its documents.
        save_every: Store the token after this many changes; for ``at_least_once``.
        watch_options: Other options of ``watch``, such as ``full_document``.

    Raises:
        ConfigurationError: One or more arguments are invalid.
        TypeError: ``source`` or ``handler`` has the wrong type.

    Only one ``run()`` may be active at a time. ``stop()`` is thread-safe.
    """

    _sources = (Collection, Database, MongoClient)
    _collection_tokens = CollectionTokens
    _token_class = "CollectionTokens"  # noqa: S105 - no password

    def run(self) -> None:
        """Handle changes until ``stop()`` is called.

        Raises:
            StreamError: The stream cannot continue: HistoryLostError, ForeignTokenError,
                ChangeTooLargeError, OvertakenError, or StreamInvalidatedError.
            Exception: The handler's error, or an error of pymongo that would not go away by
                waiting.
        """
        steps = self._begin()
        try:
            step: Step = next(steps)
            while True:
                try:
                    result = self._do(step)
                except Exception as error:  # noqa: BLE001 - the rules decide
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration:
            return
        finally:
            # ``stop()`` ends a single run.
            self._is_running = self.is_stopping = False
            self._close()
            steps.close()

    def _do(self, step: Step) -> Any:
        match step:
            case Load():
                return self._tokens.load()
            case Open():
                self._close()
                self._stream = self._source.watch(**self._arguments(step))
                return self._stream.resume_token
            case Next():
                return self._received(self._stream.try_next())
            case Handle():
                self._handle(step)
            case Skip():
                self._skip(step)
            case Save():
                if self._exactly:
                    self._tokens.replace(step.token, step.before)
                else:
                    self._tokens.save(step.token)
            case Pause():
                # Sleep in slices instead of waiting for an Event: a signal handler may call
                # ``stop()`` while this thread holds the lock of the Event.
                end, left = time.monotonic() + step.seconds, step.seconds
                while left > 0 and not self.is_stopping:
                    time.sleep(min(SLICE, left))
                    left = end - time.monotonic()
            case Close():
                self._close()
        return None

    def _handle(self, step: Handle) -> None:
        raised: list[Exception] = []

        def handle(session: Any) -> None:
            # The transaction may be retried, which calls this function again.
            raised.clear()
            try:
                self._handler(step.change, session)
            except Exception as error:
                raised.append(error)
                raise
            # If another consumer has stored a token, this raises, and the transaction undoes the
            # handler's writes.
            self._tokens.replace(step.token, step.before, session)

        try:
            if self._exactly:
                run(self._client, handle, TRANSACTION)
            else:
                self._handler(step.change)
        except Exception as error:
            # An error of the commit or of the token store is not the handler's.
            if self._exactly and error not in raised:
                raise
            failed = self._failed(error)
            if failed is error:
                raise
            raise failed from None
        self.handled += 1

    def _skip(self, step: Skip) -> None:
        on_skip: Any = self._on_skip

        def skip(session: Any) -> None:
            on_skip(step.change, step.error, session)
            self._tokens.replace(step.token, step.before, session)

        if self._exactly:
            run(self._client, skip, TRANSACTION)
        else:
            on_skip(step.change, step.error)
        self.skipped += 1

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(PyMongoError):
                stream.close()


class AsyncChangeConsumer(_Consumer):
    """As ``ChangeConsumer``, for an AsyncCollection, an AsyncDatabase or an AsyncMongoClient.

    ``run`` is a coroutine. The handler, ``on_skip``, and the methods of ``tokens`` may be coroutine
    functions. If ``run()`` is canceled, no further token is stored, so the change that was being
    handled is handled again.
    """

    _sources = (AsyncCollection, AsyncDatabase, AsyncMongoClient)
    _collection_tokens = AsyncCollectionTokens
    _token_class = "AsyncCollectionTokens"  # noqa: S105 - no password

    async def run(self) -> None:
        """Handle changes until ``stop()`` is called. Raises the same errors as
        ``ChangeConsumer.run``."""
        steps = self._begin()
        try:
            step: Step = next(steps)
            while True:
                try:
                    result = await self._do(step)
                except Exception as error:  # noqa: BLE001 - the rules decide
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration:
            return
        finally:
            # ``stop()`` ends a single run.
            self._is_running = self.is_stopping = False
            await self._close()
            steps.close()

    async def _do(self, step: Step) -> Any:
        match step:
            case Load():
                return await _awaited(self._tokens.load())
            case Open():
                await self._close()
                self._stream = await self._source.watch(**self._arguments(step))
                return self._stream.resume_token
            case Next():
                return self._received(await self._stream.try_next())
            case Handle():
                await self._handle(step)
            case Skip():
                await self._skip(step)
            case Save():
                if self._exactly:
                    await self._tokens.replace(step.token, step.before)
                else:
                    await _awaited(self._tokens.save(step.token))
            case Pause():
                # ``stop()`` may be called in any thread, so check the flag instead of awaiting an
                # event.
                end, left = time.monotonic() + step.seconds, step.seconds
                while left > 0 and not self.is_stopping:
                    await asyncio.sleep(min(SLICE, left))
                    left = end - time.monotonic()
            case Close():
                await self._close()
        return None

    async def _handle(self, step: Handle) -> None:
        raised: list[Exception] = []

        async def handle(session: Any) -> None:
            # The transaction may be retried, which calls this function again.
            raised.clear()
            try:
                await _awaited(self._handler(step.change, session))
            except Exception as error:
                raised.append(error)
                raise
            # If another consumer has stored a token, this raises, and the transaction undoes the
            # handler's writes.
            await self._tokens.replace(step.token, step.before, session)

        try:
            if self._exactly:
                await run_async(self._client, handle, TRANSACTION)
            else:
                await _awaited(self._handler(step.change))
        except Exception as error:
            # An error of the commit or of the token store is not the handler's.
            if self._exactly and error not in raised:
                raise
            failed = self._failed(error)
            if failed is error:
                raise
            raise failed from None
        self.handled += 1

    async def _skip(self, step: Skip) -> None:
        on_skip: Any = self._on_skip

        async def skip(session: Any) -> None:
            await _awaited(on_skip(step.change, step.error, session))
            await self._tokens.replace(step.token, step.before, session)

        if self._exactly:
            await run_async(self._client, skip, TRANSACTION)
        else:
            await _awaited(on_skip(step.change, step.error))
        self.skipped += 1

    async def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(PyMongoError):
                await stream.close()


async def _awaited(value: Any) -> Any:
    """Await the value if that is possible, and return the result."""
    result: Awaitable[Any] = value
    return await result if inspect.isawaitable(value) else value
