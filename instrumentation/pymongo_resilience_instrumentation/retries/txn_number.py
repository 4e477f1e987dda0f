"""Keeps the transaction number of a write for all its attempts.

After the first attempt has failed, the library decides whether the next one is sent with the
number, without it, or not at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pymongo_resilience.clock import Clock, Deadline
from pymongo_resilience.rules.failure import Failure, Stage
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import follows_specification
from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts, TxnNumberLostError

if TYPE_CHECKING:
    from pymongo.topology_description import TopologyDescription

    from pymongo_resilience_instrumentation.driver.protocols import Connection

DEFAULT_MINUTES = 30
"""How long a server keeps an unused session, if no server reports it."""


class TxnNumberUnsupportedError(TxnNumberLostError):
    """The server does not support retryable writes, and an earlier attempt may have been applied
    elsewhere.
    """


class TxnNumber:
    """The transaction number of a write after a failure. Belongs to one run of the retry loop."""

    bound_to: Failure | None = None
    """After this failure, no attempt may be sent without the number."""
    since: float | None = None
    """When the first attempt began that may have been applied under the number."""
    session_ends: Deadline | None = None
    """How long a server remembers that number."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def next_command(self) -> None:
        """Forget the number, because the next command of a bulk write has its own."""
        self.bound_to = self.since = self.session_ends = None

    def take(self, attempts: DriverAttempts, connection: Connection) -> bool:
        """Return True if the next attempt is sent as a retryable write.

        Raises:
            TxnNumberLostError: If it must not be sent.
        """
        supported = attempts.supports_txn_number(connection)
        self._note_session(connection)
        if self.bound_to is not None and self.session_ends and self.session_ends.expired():
            # The server would not recognize the number, and apply the write again.
            raise TxnNumberUnsupportedError(
                "the write was not sent again, because the server may have ended its session"
            )
        if not supported:
            attempts.refuse_lost_number(connection)
            if self.bound_to is not None:
                raise TxnNumberUnsupportedError(
                    "the write was not sent again, because the server does not support retryable "
                    "writes"
                )
        # pymongo reads this flag when it builds the command.
        attempts.set_retryable(supported)
        return supported

    def unsupported(self) -> Failure | None:
        """Return the failure that counts for an attempt which was not sent, because it could not
        carry the number.
        """
        if self.bound_to is None:
            return None
        return replace(self.bound_to, carried_txn_number=False, session_ends=self.session_ends)

    def known(
        self, attempts: DriverAttempts, failure: Failure, state: RetryState, began: float
    ) -> Failure:
        """Return ``failure`` with the time until which servers remember the number."""
        has_number = failure.carried_txn_number or state.kind is Kind.TRANSACTION_END
        if failure.may_be_applied and has_number and self.since is None:
            # The session's time runs from the first attempt that may have been applied.
            self.since = began
        if self.since is None:
            return failure
        self._note_session(attempts.client.topology_description)
        return replace(failure, session_ends=self.session_ends)

    def bind(self, failure: Failure, state: RetryState) -> None:
        """Called before the next attempt. Decide whether it needs the number.

        Retryable Writes: if the server of the retry does not support it, the original error is
        raised. By the library's own rules, a write that was never sent may be sent without a
        number.
        """
        if failure.retryable_overload or state.declared_idempotent:
            return
        sent = failure.stage is not Stage.NOT_SENT
        if sent or (follows_specification(state) and self.bound_to is None):
            # From now on, an attempt without the number might apply the write twice.
            self.bound_to = failure

    def _note_session(self, known_to: Connection | TopologyDescription) -> None:
        """Update how long the session lives. ``known_to`` is the connection, or the topology's
        description.
        """
        if self.since is not None:
            minutes = known_to.logical_session_timeout_minutes
            timeout = 60.0 * (minutes if isinstance(minutes, int) else DEFAULT_MINUTES)
            self.session_ends = Deadline(self._clock, self.since + timeout, timeout)
