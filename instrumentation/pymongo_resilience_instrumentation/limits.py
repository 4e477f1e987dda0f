"""How long one operation may take."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from pymongo_resilience.timeout_source import TimeoutSource

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.timeouts.bounded_waits import Wait
    from pymongo_resilience_instrumentation.timeouts.precedence import (
        CursorTimeout,
        TransactionDeadline,
    )

NEVER = float("inf")
NO_DEADLINE: AbstractContextManager[None] = nullcontext()
PAST_DEADLINE: AbstractContextManager[None] = nullcontext()
"""Replaces the deadline of an operation that has ended. A task that inherited the operation then
deactivates the inherited timeout; see ``in_progress.clear_inherited``.
"""


class HasDeadline(Protocol):
    """One run of a wrapped method, as its interceptor's ``enter`` returns it."""

    @property
    def deadline(self) -> AbstractContextManager[None]:
        """Activated while pymongo runs."""


class Limits:
    """How long an operation may take. The modules of ``timeouts/`` write it while it runs.

    Belongs to the operation's thread or task. Durations are in seconds. Attributes that most
    operations never set are class attributes, so that creating the limits is cheap.
    """

    timeout: float | None = None
    """For the whole operation. 0 disables the timeout; None means no deadline."""
    source: TimeoutSource = TimeoutSource.NONE
    """Who set the timeout."""
    deadline: AbstractContextManager[None] = NO_DEADLINE
    """Activates the timeout, if the library must do so."""
    without_request: tuple[float | None, TimeoutSource] | None = None
    """``timeout`` and ``source`` without the deadline of the incoming request. None if that
    deadline does not shorten the timeout.
    """
    own_timeout: float | None = None
    """The timeout that the operation would have without a ``pymongo.timeout`` around it."""
    own_source: TimeoutSource = TimeoutSource.NONE
    """Who set ``own_timeout``."""
    timeout_of_pymongo: float | None = None
    """A timeout that pymongo alone enforces, for display."""
    attempt_timeout: float | None = None
    """How long a sent command may wait for its reply."""
    transaction: TransactionDeadline | None = None
    """The deadline of the ``with_transaction`` whose callback contains the operation."""
    cursor: CursorTimeout | None = None
    """Set if the operation creates a cursor or fetches a batch."""
    stream: CursorTimeout | None = None
    """Set if the operation resumes a change stream."""
    sent_ms: int | None = None
    """The ``maxTimeMS`` of the last command."""
    application_limit_ms: int | None = None
    """The application's own ``maxTimeMS``, if the last command carried it because the library set
    no shorter one.
    """
    attempt_limits_server: bool = False
    """True if the last command carried the attempt's timeout as its ``maxTimeMS``."""
    reply_within: float | None = None
    """The attempt timeout of the command that is being sent. A cursor's later batch has none,
    because it may wait for new documents.
    """
    waits: list[Wait] | None = None
    """The waits for a server or a connection so far."""

    def to_keep(self) -> tuple[float | None, TimeoutSource]:
        """Return the timeout that a cursor or stream of this operation keeps, and who set it.

        The deadline of the incoming request is not included, because the cursor may outlive the
        request.
        """
        return self.without_request or (self.timeout, self.source)

    def for_another_try(self) -> Limits:
        """Return the limits of a try that runs beside another one, within the deadline around
        it.
        """
        limits = copy.copy(self)
        limits.deadline, limits.waits = NO_DEADLINE, None
        return limits
