"""A change stream's consumer, step by step, for threads and for tasks: ``consume`` yields what is
to be done next, and gets its result or its error. It does nothing itself.
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
    """The token is stored after the handler: a change may be handled again after a failure."""
    EXACTLY_ONCE = "exactly_once"
    """The token is stored in the transaction of the handler's own writes."""


class ErrorKind(enum.Enum):
    """What an error means for the stream."""

    PASSING = enum.auto()
    """The server is away, busy or changing: open the stream again."""
    TERMINAL = enum.auto()
    """Waiting cannot help, unless the stream was open before: then someone is repairing it."""
    HISTORY_LOST = enum.auto()
    FOREIGN_TOKEN = enum.auto()
    TOO_LARGE = enum.auto()
    FINAL = enum.auto()
    """The application, or its configuration, is at fault."""


class StreamError(Exception):
    """A consumer has ended, and cannot go on by itself. The text says what to do."""


class HistoryLostError(StreamError):
    """The server no longer has the changes after the stored token: some were not handled, and
    cannot be had any more. Raised once by each ``run()``, never passed over."""


class ForeignTokenError(StreamError):
    """The stored token does not belong to this stream."""


class ChangeTooLargeError(StreamError):
    """A change has more than 16 MB, and cannot be sent."""


class StreamInvalidatedError(StreamError):
    """The collection was dropped or renamed, or its database dropped, and the consumer was to stop
    then. The next ``run()`` goes on with what has the name afterwards."""


class OvertakenError(StreamError):
    """Another consumer with the same name is running: it has stored a token in the meantime."""


# What is to be done.


class Load(NamedTuple):
    """Read the stored token; None if there is none."""


class Open(NamedTuple):
    """Open the stream after a token, or now; returns where it begins."""

    token: Token | None
    is_reduced: bool = False
    """Without the documents, which may be too large."""


class Next(NamedTuple):
    """Wait for a change for a moment."""


class Handle(NamedTuple):
    """Call the handler; with the token to store in its transaction, and the one before."""

    change: Change
    token: Token
    before: Token | None


class Skip(NamedTuple):
    """Record a change that the handler has failed for, and store the token."""

    change: Change
    error: Exception
    token: Token
    before: Token | None


class Save(NamedTuple):
    """Store a token in place of the one before."""

    token: Token
    before: Token | None


class Pause(NamedTuple):
    """Wait, or until the consumer is stopped."""

    seconds: float


class Close(NamedTuple):
    """Close the stream; its errors do not matter."""


Step = Load | Open | Next | Handle | Skip | Save | Pause | Close


class Received(NamedTuple):
    """What ``Next`` has brought: a change or None, and the token after it."""

    change: Change | None
    token: Token | None


class Control(Protocol):
    """What the application has asked for in the meantime."""

    @property
    def is_stopping(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class StreamRules:
    """How a consumer behaves. Immutable. Durations are seconds."""

    name: str
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    handler_retries: int = 0
    """How often the handler is called again for a change that it has failed for."""
    skips: bool = False
    """Record such a change and go on; else its error ends the consumer."""
    stops_when_invalidated: bool = False
    reduces_large: bool = False
    """Hand over a change that is too large without its documents; else it ends the consumer."""
    save_every: int = 1
    """Changes after which the token is stored, with ``AT_LEAST_ONCE``."""
    save_idle_s: float = 10.0
    """Seconds after which the token of a stream without changes is stored."""


SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds between two attempts to open the stream."""


class Pace:
    """When to try again: at most one attempt a second, and fewer while they fail."""

    def __init__(self, shortest: float = SHORTEST_PAUSE) -> None:
        self._shortest = self._next = shortest
        self._last: float | None = None

    def begin(self, now: float) -> None:
        """Note an attempt."""
        self._last = now

    def succeed(self) -> None:
        """Note that the stream has delivered something, or was idle in good order."""
        self._next = self._shortest

    def pause(self, now: float) -> float:
        """Return the seconds to wait before the next attempt."""
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause if self._last is None else max(0.0, self._last + pause - now)


ADVICE = {
    ErrorKind.HISTORY_LOST: (
        HistoryLostError,
        (
            "the server no longer has the changes after the stored token, because the consumer was "
            "away for longer than the oplog reaches back. Bring what the handler maintains up to "
            "date from the collection itself, then forget the token (tokens.forget()) and start "
            "again; to prevent it, make the oplog larger (replSetResizeOplog, minRetentionHours)"
        ),
    ),
    ErrorKind.FOREIGN_TOKEN: (
        ForeignTokenError,
        (
            "the stored token does not belong to this stream: the name is used for another "
            "collection, database, deployment or pipeline. Give each stream a name of its own, or "
            "forget the token (tokens.forget()) if the changes since then do not matter"
        ),
    ),
    ErrorKind.TOO_LARGE: (
        ChangeTooLargeError,
        (
            'a change has more than 16 MB. Use on_large_change="reduce", which hands it over '
            "without its documents, project fewer fields in the pipeline, or do without "
            "full_document"
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
    """Yield the steps of a consumer, until it is stopped.

    Raises what ended it: a StreamError, the handler's own error, or the driver's.
    """
    consumer = _Consumer(rules, control, now, notify)
    while not control.is_stopping:
        consumer.pace.begin(now())
        try:
            yield from consumer.open_and_follow()
        except _HandlerError as failed:
            yield from consumer.save_at_end()
            yield Close()
            raise failed.error from None
        except StreamError as error:
            yield Close()
            consumer.tell(StreamStep.FAILED, type(error).__name__)
            raise
        except Exception as error:
            yield Close()
            kind = kind_of(error)
            if kind is ErrorKind.TOO_LARGE and rules.reduces_large and not consumer.is_reduced:
                consumer.is_reduced = True
                continue
            if kind in ADVICE:
                cls, text = ADVICE[kind]
                consumer.tell(StreamStep.FAILED, cls.__name__)
                raise cls(f"{rules.name}: {text}") from error
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
    """What one run knows."""

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
        """After the last change that was handled."""
        self._saved: Token | None = None
        self._saved_at = 0.0
        self._unsaved = 0
        """Changes that were handled since."""

    def tell(self, step: StreamStep, reason: str = "", pause: float | None = None) -> None:
        self._notify(StreamNotice(self._rules.name, step, reason, pause))

    def open_and_follow(self) -> Generator[Step, Any, None]:
        """Open the stream after the last change that was handled, and follow it."""
        exactly = self._rules.delivery is Delivery.EXACTLY_ONCE
        if exactly or self._handled is None:
            # With EXACTLY_ONCE the store alone shows whether a commit without a reply happened.
            self._handled = self._saved = yield Load()
            self._unsaved = 0
        token = self._handled
        begins: Token | None = yield Open(token, self.is_reduced)
        self.tell(StreamStep.RESUMED if token is not None else StreamStep.OPENED)
        self.was_open = True
        self._saved_at = self._now()
        if token is None and begins is not None:
            # Before anything was handled: what happens from here on must not be missed by the next
            # start.
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
        if self._unsaved and self._handled is not None:
            yield from self._save(self._handled)

    def _handle(self, change: Change, after: Token | None) -> Generator[Step, Any, bool]:
        """Handle one change; returns whether the stream ends with it."""
        rules = self._rules
        invalidates = change.get("operationType") == "invalidate"
        # After an invalidation, only its own token can be started after.
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
            if rules.stops_when_invalidated:
                raise StreamInvalidatedError(
                    f"{rules.name}: what the stream watches was dropped or renamed; the next run() "
                    "goes on with what has its name then"
                )
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
        """Store how far a stream without changes has come, or its history is lost one day."""
        if token is None or self._now() - self._saved_at < self._rules.save_idle_s:
            return
        if token != self._saved:
            yield from self._save(token)
        self._saved_at = self._now()

    def save_at_end(self) -> Generator[Step, Any, None]:
        """Store the token of the changes before the one that has ended the consumer."""
        if self._unsaved and self._handled is not None:
            with suppress(Exception):  # then they are handled again
                yield from self._save(self._handled)

    def _save(self, token: Token) -> Generator[Step, Any, None]:
        yield Save(token, self._saved)
        self._note_saved(token)

    def _note_saved(self, token: Token) -> None:
        self._handled = self._saved = token
        self._saved_at = self._now()
        self._unsaved = 0


class HandlerFailed(Exception):  # noqa: N818 - it is no error by itself
    """What runs ``Handle`` raises if the handler has failed, and the server is not at fault."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
