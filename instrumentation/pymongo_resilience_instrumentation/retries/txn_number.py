"""That all attempts of a write have one transaction number: once its first attempt has failed, the
library decides whether the next one is sent with it, without it, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pymongo.errors import PyMongoError

from pymongo_resilience.clock import Clock, Deadline
from pymongo_resilience.rules.failure import Failure, Stage
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import follows_specification
from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts

if TYPE_CHECKING:
    from pymongo.topology_description import TopologyDescription

    from pymongo_resilience_instrumentation.driver.protocols import Connection

DEFAULT_MINUTES = 30
"""For which a server keeps a session that is not used, where none that is known says it."""


class TxnNumberLostError(PyMongoError):
    """A retryable write was not sent, since its server would take it for one that is not.

    Raised inside of a checkout, where a network error would make the driver clear its pool.
    """


class TxnNumberUnsupportedError(TxnNumberLostError):
    """The server takes no retryable writes, and an earlier attempt may be applied elsewhere."""


def refuse_lost(attempts: DriverAttempts, connection: Connection) -> None:
    """Raises TxnNumberLostError for a write that lost its number on the way."""
    if attempts.lost_its_txn_number(connection):
        attempts.set_retryable(True)
        raise TxnNumberLostError(
            "the server ceased to be a known primary before the write was sent"
        )


class TxnNumber:
    """What is known of it after a failure. Belongs to one run of the retry loop."""

    bound_to: Failure | None = None
    """After it, no attempt may be sent without the number."""
    since: float | None = None
    """When the first attempt began that may be applied, and a server knows by its number."""
    session_ends: Deadline | None = None
    """How long the server does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def next_command(self) -> None:
        """A bulk's next command has a number of its own."""
        self.bound_to = self.since = self.session_ends = None

    def take(self, attempts: DriverAttempts, connection: Connection) -> bool:
        """Whether a repeated attempt is sent as a retryable write. Raises TxnNumberLostError where
        it must not be sent."""
        supported = attempts.supports_txn_number(connection)
        self._note_session(connection)
        if self.bound_to is not None and self.session_ends and self.session_ends.expired():
            raise TxnNumberUnsupportedError("the server may have ended the write's session")
        if not supported:
            refuse_lost(attempts, connection)
            if self.bound_to is not None:
                raise TxnNumberUnsupportedError("the server supports no retryable writes any more")
        attempts.set_retryable(supported)
        return supported

    def unsupported(self) -> Failure | None:
        """The failure that an attempt which was not sent for want of a number ends with."""
        if self.bound_to is None:
            return None
        return replace(self.bound_to, carried_txn_number=False, session_ends=self.session_ends)

    def known(
        self, attempts: DriverAttempts, failure: Failure, state: RetryState, began: float
    ) -> Failure:
        """``failure``, with how long servers recognise what was sent with the number so far."""
        applied = failure.stage is not Stage.NOT_SENT and not failure.retryable_overload
        numbered = failure.carried_txn_number or state.kind is Kind.TRANSACTION_END
        if applied and numbered and self.since is None:
            self.since = began
        if self.since is None:
            return failure
        self._note_session(attempts.client.topology_description)
        return replace(failure, session_ends=self.session_ends)

    def bind(self, failure: Failure, state: RetryState) -> None:
        """Before the attempt that follows. Retryable Writes: where the server of the retry does not
        support it, the original error is raised. By our own rules, what was never sent is sent
        without a number."""
        if failure.retryable_overload or state.declared_idempotent:
            return
        sent = failure.stage is not Stage.NOT_SENT
        if sent or (follows_specification(state) and self.bound_to is None):
            self.bound_to = failure

    def _note_session(self, known_to: Connection | TopologyDescription) -> None:
        """``known_to``: the connection, or what is known of all servers."""
        if self.since is not None:
            minutes = known_to.logical_session_timeout_minutes
            timeout = 60.0 * (minutes if isinstance(minutes, int) else DEFAULT_MINUTES)
            self.session_ends = Deadline(self._clock, self.since + timeout, timeout)
