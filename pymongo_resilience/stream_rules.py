"""The steps of a change stream's consumer, for the sync and the async one.

``consume`` is a generator. It yields the next step, and the caller carries the step out and sends
back the result, or throws the error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pymongo_resilience.events import StreamNotice, StreamStep

Token = Mapping[str, Any]
Change = Mapping[str, Any]


class Delivery(enum.StrEnum):
    """How often a change is handled."""

    AT_LEAST_ONCE = "at_least_once"
    """The token is stored after the handler, so a change may be handled again after a failure."""
    EXACTLY_ONCE = "exactly_once"
    """The token is stored in the transaction of the handler's writes."""


class ErrorKind(enum.Enum):
    """What an error means for the stream."""

    PASSING = enum.auto()
    """The server is unavailable for the moment. Open the stream again."""
    TERMINAL = enum.auto()
    """Waiting does not help, unless the stream was open before and somebody repairs the cause."""
    HISTORY_LOST = enum.auto()
    FOREIGN_TOKEN = enum.auto()
    TOO_LARGE = enum.auto()
    FINAL = enum.auto()
    """The error is raised, because the application or its configuration caused it."""


class StreamError(Exception):
    """A consumer has ended and cannot continue by itself. The text says what to do."""


class HistoryLostError(StreamError):
    """The server no longer has the changes after the stored token, so changes were lost.

    Each ``run()`` raises this once. No option skips it.
    """


class ForeignTokenError(StreamError):
    """The stored token does not belong to this stream."""


class ChangeTooLargeError(StreamError):
    """A change is larger than 16 MB, so the server cannot send it."""


class StreamInvalidatedError(StreamError):
    """The collection was dropped or renamed, or its database was dropped, and
    ``on_invalidated="stop"`` is set. The next ``run()`` watches the next collection of that name.
    """


class OvertakenError(StreamError):
    """Another consumer with the same name is running, because it has stored a token."""


# The steps


class Load(NamedTuple):
    """Return the stored token, or None."""


class Open(NamedTuple):
    """Open the stream after a token or at the present, and return the token of its beginning."""

    token: Token | None
    is_reduced: bool = False
    """Leave out the documents, which may be too large."""


class Next(NamedTuple):
    """Wait a moment for a change, and return a ``Received``."""


class Handle(NamedTuple):
    """Call the handler. With ``EXACTLY_ONCE``, store the token in the handler's transaction."""

    change: Change
    token: Token
    before: Token | None


class Skip(NamedTuple):
    """Record a change for which the handler failed, and store the token."""

    change: Change
    error: Exception
    token: Token
    before: Token | None


class Save(NamedTuple):
    """Replace the token ``before`` with ``token``."""

    token: Token
    before: Token | None


class Pause(NamedTuple):
    """Wait, at most until the consumer is stopped."""

    seconds: float


class Close(NamedTuple):
    """Close the stream, and ignore errors."""


Step = Load | Open | Next | Handle | Skip | Save | Pause | Close


class Received(NamedTuple):
    """The result of ``Next``: a change or None, and the token after it."""

    change: Change | None
    token: Token | None


class Control(Protocol):
    """The application's control over a run."""

    @property
    def is_stopping(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class StreamRules:
    """How a consumer behaves. Immutable. Durations are seconds."""

    name: str
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    handler_retries: int = 0
    """How often the handler is called again for a change for which it failed."""
    skips: bool = False
    """Record such a change and continue. If False, its error ends the consumer."""
    stops_when_invalidated: bool = False
    reduces_large: bool = False
    """Pass on a change that is too large without its documents. If False, it ends the consumer."""
    save_every: int = 1
    """Store the token after this many changes, with ``AT_LEAST_ONCE``."""
    save_idle_s: float = 10.0
    """Store the token of a stream without changes after this many seconds."""


SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds between two attempts to open the stream."""


class Pace:
    """Limits attempts to open the stream to one a second, and to fewer while they fail."""

    def __init__(self, shortest: float = SHORTEST_PAUSE) -> None:
        self._shortest = self._next = shortest
        self._last: float | None = None

    def begin(self, now: float) -> None:
        """Record an attempt."""
        self._last = now

    def succeed(self) -> None:
        """Record that the stream has delivered a change, or was idle without an error."""
        self._next = self._shortest

    def pause(self, now: float) -> float:
        """Return the seconds to wait before the next attempt."""
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause if self._last is None else max(0.0, self._last + pause - now)


ADVICE = {
    ErrorKind.HISTORY_LOST: (
        HistoryLostError,
        (
            "the server no longer has the changes after the stored token, because the consumer "
            "was stopped for longer than the oplog reaches back. Update the handler's data from "
            "the collection itself, remove the token with tokens.forget(), and start again. To "
            "prevent this, make the oplog larger (replSetResizeOplog, minRetentionHours)"
        ),
    ),
    ErrorKind.FOREIGN_TOKEN: (
        ForeignTokenError,
        (
            "the stored token does not belong to this stream: the name is used for another "
            "collection, database, deployment or pipeline. Give each stream its own name. If you "
            "can do without the changes after that token, remove it with tokens.forget()"
        ),
    ),
    ErrorKind.TOO_LARGE: (
        ChangeTooLargeError,
        (
            'a change is larger than 16 MB. Set on_large_change="reduce" to get it without its '
            "documents, project fewer fields in the pipeline, or remove full_document"
        ),
    ),
}


def consume(
    rules: StreamRules,
    control: Control,
    kind_of: Callable[[Exception], ErrorKind],
    now: Callable[[], float],
    notify: Callable[[StreamNotice], None],
) -> Generator[Step, Any, None]:
    """Yield the steps of a consumer until it is stopped.

    Raises:
        StreamError: The stream cannot continue.
        Exception: The handler's error, or an error of the driver that ended the consumer.
    """
    consumer = _Consumer(rules, control, now, notify)
    while not control.is_stopping:
        consumer.pace.begin(now())
        try:
            yield from consumer.open_and_follow()
        except _HandlerError as failed:
            yield from consumer.save_at_end()
            yield Close()
            # Without ``from None``, the traceback would show the internal exception that carried
            # the error here.
            raise failed.error from None
        except StreamError as error:
            yield Close()
            consumer.tell(StreamStep.FAILED, type(error).__name__)
            raise
        except Exception as error:
            yield Close()
            kind = kind_of(error)
            if kind is ErrorKind.TOO_LARGE and rules.reduces_large and not consumer.is_reduced:
                # Read only this change without its documents. The server is fine, so open the
                # stream again at once.
                consumer.is_reduced = True
                continue
            if kind in ADVICE:
                cls, text = ADVICE[kind]
                consumer.tell(StreamStep.FAILED, cls.__name__)
                raise cls(f"{rules.name}: {text}") from error
            # TERMINAL is, for example, a wrong password. If the consumer was never open, the
            # application should hear of it. If it was open, it waits until somebody repairs it.
            if kind is ErrorKind.FINAL or (kind is ErrorKind.TERMINAL and not consumer.was_open):
                consumer.tell(StreamStep.FAILED, type(error).__name__)
                raise
            pause = consumer.pace.pause(now())
            consumer.tell(StreamStep.LOST, type(error).__name__, pause)
            if pause > 0:
                yield Pause(pause)
    yield Close()
    consumer.tell(StreamStep.STOPPED)


class _HandlerError(Exception):
    """The handler's error, which ends the consumer."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _Consumer:
    """The state of one run."""

    def __init__(
        self,
        rules: StreamRules,
        control: Control,
        now: Callable[[], float],
        notify: Callable[[StreamNotice], None],
    ) -> None:
        self._rules = rules
        self._control = control
        self._now = now
        self._notify = notify
        self.pace = Pace()
        self.was_open = False
        self.is_reduced = False
        self._handled: Token | None = None
        """The token after the last change that was handled."""
        self._saved: Token | None = None
        self._saved_at = 0.0
        self._unsaved = 0
        """Number of changes that were handled since the token was stored."""

    def tell(self, step: StreamStep, reason: str = "", pause: float | None = None) -> None:
        self._notify(StreamNotice(self._rules.name, step, reason, pause))

    def open_and_follow(self) -> Generator[Step, Any, None]:
        """Open the stream after the last change that was handled, and follow it."""
        exactly = self._rules.delivery is Delivery.EXACTLY_ONCE
        if exactly or self._handled is None:
            # With EXACTLY_ONCE, only the store shows whether a commit without a reply took effect.
            self._handled = self._saved = yield Load()
            self._unsaved = 0
            # Loading the token may have taken a while. The pause counts from here.
            self.pace.begin(self._now())
        token = self._handled
        begins: Token | None = yield Open(token, self.is_reduced)
        self.tell(StreamStep.RESUMED if token is not None else StreamStep.OPENED)
        self.was_open = True
        self._saved_at = self._now()
        if token is None and begins is not None:
            # Nothing was handled so far. Store the beginning, so that a restart does not miss the
            # changes from now on.
            yield from self._save(begins)
        while not self._control.is_stopping:
            received: Received = yield Next()
            self.pace.succeed()
            if received.change is None:
                yield from self._save_if_idle(received.token)
                continue
            is_over = yield from self._handle(received.change, received.token)
            if is_over:
                yield Close()
                return
        # With ``save_every``, the last changes may have been handled but not stored.
        if self._unsaved and self._handled is not None:
            yield from self._save(self._handled)

    def _handle(self, change: Change, after: Token | None) -> Generator[Step, Any, bool]:
        """Handle one change. Return True if the stream ends with it."""
        rules = self._rules
        invalidates = change.get("operationType") == "invalidate"
        # After an invalidation, a stream can only be started with the invalidation's own token.
        token: Token = change["_id"] if invalidates or after is None else after
        if self.is_reduced:
            token = change["_id"]
        yield from self._call_handler(change, token)
        if rules.delivery is Delivery.EXACTLY_ONCE:
            self._note_saved(token)
        else:
            self._handled = token
            self._unsaved += 1
            if self._unsaved >= rules.save_every or invalidates:
                yield from self._save(token)
        if invalidates:
            self.tell(StreamStep.INVALIDATED)
            # Only now, after the token was stored: the next run must begin after the invalidation.
            if rules.stops_when_invalidated:
                raise StreamInvalidatedError(
                    f"{rules.name}: the watched collection or database was dropped or renamed. The "
                    "next run() watches the new collection or database of that name"
                )
        # The stream without documents has served its purpose. End it, so that the next one has
        # documents again.
        was_reduced, self.is_reduced = self.is_reduced, False
        return invalidates or was_reduced

    def _call_handler(self, change: Change, token: Token) -> Generator[Step, Any, None]:
        rules, pace = self._rules, Pace()
        attempts = 0
        while True:
            pace.begin(self._now())
            try:
                yield Handle(change, token, self._saved)
            except HandlerFailed as failed:
                attempts += 1
                error = failed.error
            else:
                return
            reason = type(error).__name__
            if attempts <= rules.handler_retries:
                pause = pace.pause(self._now())
                self.tell(StreamStep.HANDLER_FAILED, reason, pause)
                yield Pause(pause)
                if self._control.is_stopping:
                    raise _HandlerError(error)
            elif rules.skips:
                yield Skip(change, error, token, self._saved)
                self.tell(StreamStep.SKIPPED, reason)
                return
            else:
                self.tell(StreamStep.FAILED, reason)
                raise _HandlerError(error)

    def _save_if_idle(self, token: Token | None) -> Generator[Step, Any, None]:
        """Store the position of a stream without changes, which the oplog would lose otherwise."""
        if token is None or self._now() - self._saved_at < self._rules.save_idle_s:
            return
        if token != self._saved:
            yield from self._save(token)
        # Even if the token was the same: compare again after another ``save_idle_s`` only.
        self._saved_at = self._now()

    def save_at_end(self) -> Generator[Step, Any, None]:
        """Store the token of the change before the one that ended the consumer."""
        if self._unsaved and self._handled is not None:
            # If the token cannot be stored, these changes are handled again after a restart.
            with suppress(Exception):
                yield from self._save(self._handled)

    def _save(self, token: Token) -> Generator[Step, Any, None]:
        yield Save(token, self._saved)
        self._note_saved(token)

    def _note_saved(self, token: Token) -> None:
        self._handled = self._saved = token
        self._saved_at = self._now()
        self._unsaved = 0


class HandlerFailed(Exception):  # noqa: N818 - it is no error by itself
    """Thrown into ``consume`` if the handler failed, unless the server was the cause."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
