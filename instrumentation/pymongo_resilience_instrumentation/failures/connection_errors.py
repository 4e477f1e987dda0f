"""Connections that were ended on purpose, and why: the cause of the driver's AutoReconnect."""

from __future__ import annotations

from typing import ClassVar

from pymongo.errors import AutoReconnect

from pymongo_resilience.rules.failure import RetryReason


class LostConnectionError(OSError):
    """What pymongo takes for a network error. Without an errno: a timeout would be none to it."""

    reason: ClassVar[RetryReason]


class DeadPeerError(LostConnectionError):
    """The peer's kernel acknowledged nothing for so long that the connection was given up."""

    reason = RetryReason.DEAD_PEER

    def __init__(self, seconds: int) -> None:
        super().__init__(
            f"connection closed: nothing received from the server's host for {seconds} s"
        )


class AttemptTimeoutError(LostConnectionError, TimeoutError):
    """Nothing was answered in the time of an attempt; pymongo takes it for a network timeout."""

    reason = RetryReason.ATTEMPT_TIMEOUT

    def __init__(self, seconds: float) -> None:
        super().__init__(f"timed out: no answer within {seconds * 1000:.0f} ms")


class InterruptedAttemptError(LostConnectionError):
    """Its server is no longer the primary, and does not answer."""

    reason = RetryReason.INTERRUPTED

    def __init__(self) -> None:
        super().__init__("interrupted: the server is no longer the primary and does not answer")


class AttemptInterruptedError(AutoReconnect):
    """Raised in place of AutoReconnect itself, to which pymongo adds labels of overload where it
    strikes in a handshake."""
