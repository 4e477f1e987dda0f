"""Decides what is sent to end a transaction that may still be open on the server.

An open transaction holds its locks, so other writers wait. The server itself ends it only after a
minute. The tables show everything that is sent before that. ``driver/sessions.py`` collects the
facts and sends the commands; the background task is in ``cleanup.py``.

**First**, a transaction ends without a successful commit::

    how it ends                                  sent at once, by pymongo     recorded event
    -------------------------------------------  ---------------------------  ---------------------
    a statement or the block fails, the session  abortTransaction, retried    if the abort fails:
      ends, or abort_transaction() is called       once                         event of its last
                                                                                attempt
    Ctrl-C or a cancellation interrupts
      an abort                                   -                            INTERRUPTED
      the commit of with_transaction             -                            INTERRUPTED
      the commit of retry_transaction or of an   abortTransaction, when the   INTERRUPTED
        atomic write                               session ends
      the application's own commit               - (it may commit again)      -
    a commit fails                               - (it may be sent again)     -
    an abort while one of the client's           - (it cannot wait)           CLOSED
      coroutines is being closed, or between
      that and the next run of the background
      task

Nothing is recorded for a transaction that is left to pymongo: with ``strategy=driver``, while the
library is off, and in a listener. A session that is garbage collected is left to the server.

**Then**, the event decides about the transaction's state::

    event                may be forgotten   router is lost   state after
    -------------------  -----------------  ---------------  -----------
    DONE                 any                any              ENDED
    NO_SUCH_TRANSACTION  yes                any              FORGOTTEN
    NO_SUCH_TRANSACTION  no                 yes              unchanged
    NO_SUCH_TRANSACTION  no                 no               ENDED
    ERROR                any                yes              unchanged
    ERROR                any                no               ENDED
    ANOTHER_ROUTER       any                any              unchanged
    REFUSED              any                any              unchanged
    UNANSWERED           any                any              unchanged
    INTERRUPTED          any                any              unchanged
    CLOSED               any                any              unchanged

A transaction is OPEN at first. Its router may have forgotten it if a connection to that router was
lost since the last statement, because the router may have restarted. Another router never knew it,
so an error of that one shows nothing about the transaction.

**After that**, the client's background task takes a step for each transaction that has not ended,
once a second, and once more when the client is closed. The state decides which step; the event of
that step then changes the state as in the second table::

    state      router is lost  session is in use   step
    ---------  --------------  ------------------  ------------
    OPEN       no              any                 ABORT
    OPEN       yes             no                  KILL_SESSION
    OPEN       yes             yes                 WAIT
    FORGOTTEN  any             no                  KILL_SESSION
    FORGOTTEN  any             yes                 WAIT

On a replica set there is no router, so only the first row applies. After ``LIFETIME``, the server
has ended the transaction by itself, and the task stops. A forked child forgets the transactions of
its parent.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from weakref import ref

from pymongo_resilience.rules.failure import Failure, RetryReason, Stage

LIFETIME = 60.0
"""Seconds after which the server has ended a transaction (``transactionLifetimeLimitSeconds``)."""
MAX_TRANSACTIONS = 1000
"""Maximum per client. The background task may not be running, and nothing may grow without
limit.
"""
NO_SUCH_TRANSACTION = 251


class State(enum.Enum):
    """What is known about a transaction."""

    OPEN = "open"
    """The server may still hold it."""
    FORGOTTEN = "forgotten"
    """The shards may still hold it, but no router that can be reached has it on record."""
    ENDED = "ended"


class Event(enum.Enum):
    """What happened to a transaction, or to a command that should end it."""

    DONE = "done"
    """The server has carried out the command."""
    NO_SUCH_TRANSACTION = "no such transaction"
    """The server answered an abort with this error. It has ended the transaction by itself, or it
    has never known it.
    """
    ANOTHER_ROUTER = "another router"
    """An abort was sent to another router than that of the transaction, and failed."""
    REFUSED = "refused"
    """The server answered that it cannot run the command now."""
    ERROR = "error"
    """The server answered with another error."""
    UNANSWERED = "unanswered"
    """The command was not sent, or its reply is lost."""
    INTERRUPTED = "interrupted"
    """A signal handler or a cancellation interrupted an abort, the commit of a with_transaction, or
    a with_transaction whose transaction is still open. retry_transaction and atomic writes use
    with_transaction as well.
    """
    CLOSED = "closed"
    """No abort was sent, because a coroutine is being closed."""


class Step(enum.Enum):
    """What the background task does next about a transaction."""

    ABORT = "abort"
    """Send abortTransaction to the primary, or to the router that the transaction began on."""
    KILL_SESSION = "kill session"
    """Send killSessions to any router, which forwards it to all shards."""
    WAIT = "wait"
    """Send nothing: killing the session would make the application's operations with it fail."""


REFUSALS = frozenset({
    RetryReason.OVERLOADED, RetryReason.NOT_PRIMARY, RetryReason.TEMPORARILY_UNAVAILABLE,
})  # fmt: skip
"""The server, or a shard behind it, did not carry out the command, but may do so later."""


def event_of(failure: Failure) -> Event:
    """Return the event of a command that failed and should have ended a transaction."""
    if failure.stage is not Stage.ANSWERED:
        return Event.UNANSWERED
    # These answers show only that the server did not run the abort now. The transaction stays open.
    if failure.overloaded or failure.stopped_by_server or failure.reason in REFUSALS:
        return Event.REFUSED
    return Event.NO_SUCH_TRANSACTION if failure.code == NO_SUCH_TRANSACTION else Event.ERROR


def state_after(
    event: Event,
    before: State = State.OPEN,
    *,
    may_be_forgotten: bool = False,
    router_is_lost: bool = False,
) -> State:
    """Return the state of a transaction after an event: the second table of this module.

    Args:
        event: What happened.
        before: The state before it.
        may_be_forgotten: Whether the transaction's router may not know it anymore.
        router_is_lost: Whether the router on which the transaction began cannot be reached now. The
            router may have stopped before it could abort the transaction.
    """
    match event:
        case Event.DONE:
            return State.ENDED
        case Event.NO_SUCH_TRANSACTION if may_be_forgotten:
            return State.FORGOTTEN
        case Event.NO_SUCH_TRANSACTION | Event.ERROR:
            return before if router_is_lost else State.ENDED
        case (
            Event.ANOTHER_ROUTER
            | Event.REFUSED
            | Event.UNANSWERED
            | Event.INTERRUPTED
            | Event.CLOSED
        ):
            return before


def next_step(state: State, *, router_is_lost: bool, session_is_in_use: bool) -> Step:
    """Return the next step for a transaction that has not ended: the third table of this module.

    Args:
        state: The state of the transaction.
        router_is_lost: Whether the router on which the transaction began cannot be reached now.
        session_is_in_use: Whether the application has not ended the transaction's session.
    """
    if state is State.OPEN and not router_is_lost:
        return Step.ABORT
    # No router that can be reached has the transaction on record, so only the shards can end it.
    return Step.WAIT if session_is_in_use else Step.KILL_SESSION


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that must still be ended, even if its session no longer exists."""

    key: tuple[bytes, int]
    """The identifier of its session, and its transaction number."""
    abort: Mapping[str, object]
    """The command that aborts it."""
    router: tuple[str, int | None] | None
    """The address of the router that it began on; None on a replica set."""
    session: ref[object] | None
    """Its session on a sharded cluster; None on a replica set."""


class Waiting(NamedTuple):
    """A transaction that waits for the background task. Immutable."""

    transaction: OpenTransaction
    state: State
    until: float
    """When the background task stops trying."""


class OpenTransactions:
    """The transactions of one client that the background task ends.

    Owns their states. Thread-safe, and safe in finalizers and signal handlers: each change is a
    single step, without a lock. All times are on one monotonic clock.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[bytes, int], Waiting] = {}

    def add(self, transaction: OpenTransaction, state: State, now: float) -> None:
        """Let the background task end a transaction, unless it has ended.

        Several places may report the same transaction, for example after an application's task was
        cancelled. Only the first report counts.
        """
        if state is State.ENDED:
            return
        if len(self._waiting) >= MAX_TRANSACTIONS:
            # Drop the oldest one, which the server will end first. Another thread may have dropped
            # it already.
            with suppress(RuntimeError, StopIteration):
                self._waiting.pop(next(iter(self._waiting)), None)
        self._waiting.setdefault(transaction.key, Waiting(transaction, state, now + LIFETIME))

    def due(
        self,
        router_is_lost: Callable[[OpenTransaction], bool],
        session_is_in_use: Callable[[OpenTransaction], bool],
        now: float,
    ) -> Iterator[tuple[Waiting, Step]]:
        """Yield each transaction for which a command must be sent now, the oldest first."""
        # Iterate over a copy, because operations add transactions at the same time.
        for waiting in list(self._waiting.values()):
            transaction = waiting.transaction
            if now >= waiting.until:
                self.drop(waiting)
                continue
            step = next_step(
                waiting.state,
                router_is_lost=router_is_lost(transaction),
                session_is_in_use=session_is_in_use(transaction),
            )
            if step is not Step.WAIT:
                yield waiting, step

    def note(self, waiting: Waiting, step: Step, event: Event, *, router_is_lost: bool) -> None:
        """Record what happened to the command of a step."""
        # Any router can kill a session, so an answer to that shows nothing about the router on
        # which the transaction began.
        is_abort = step is Step.ABORT
        state = state_after(
            event,
            waiting.state,
            # A connection to the router may have been lost since the first abort.
            may_be_forgotten=is_abort and waiting.transaction.router is not None,
            router_is_lost=is_abort and router_is_lost,
        )
        if state is State.ENDED:
            self.drop(waiting)
        # It may have been dropped while the command was sent.
        elif waiting.transaction.key in self._waiting:
            self._waiting[waiting.transaction.key] = waiting._replace(state=state)

    def drop(self, waiting: Waiting) -> None:
        """Stop trying to end a transaction."""
        self._waiting.pop(waiting.transaction.key, None)

    def clear(self) -> None:
        """Forget all transactions, in a forked child: they belong to the parent."""
        self._waiting.clear()
