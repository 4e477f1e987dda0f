"""The call of the public API in progress: what its wrapper knows and what its telemetry gathers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opentelemetry import context

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from pymongo_resilience.failure import RetryReason
    from pymongo_resilience.orchestrator import Rule


class Call:
    """Belongs to one thread or task. The outermost wrapper makes it; inner ones find it."""

    __slots__ = (
        "acknowledged", "backoff", "collection", "command_spans", "database", "deadline",
        "declined_by", "driver_connection_id", "namespace", "operation", "otel_token",
        "reasons", "server", "span", "started", "timeout", "token",
    )  # fmt: skip

    def __init__(
        self, operation: str, database: str, collection: str | None, *, acknowledged: bool
    ) -> None:
        self.operation = operation
        self.database = database
        self.collection = collection
        self.acknowledged = acknowledged
        """False where the write concern asks for no answer."""
        self.namespace = database if collection is None else f"{database}.{collection}"
        self.started = 0.0
        self.timeout: float | None = None
        """Seconds the whole call has; 0 is without end, None is no deadline."""
        self.deadline: AbstractContextManager[None] = nullcontext()
        """Puts the timeout in force."""
        self.span: Span | None = None
        self.command_spans: dict[int, Span] = {}
        """Spans of commands in flight, by request id: ended with the call at the latest."""
        self.server: tuple[str, int | None] | None = None
        """Of the last command sent."""
        self.driver_connection_id: int | None = None
        self.reasons: list[RetryReason] = []
        """One for each retry."""
        self.backoff = 0.0
        self.declined_by: Rule | None = None
        self.token: Token[Call | None] | None = None
        self.otel_token: Token[Context] | None = None


_current: ContextVar[Call | None] = ContextVar("pymongo_resilience_call", default=None)


def current() -> Call | None:
    """The call that the caller's thread or task is in."""
    return _current.get()


def enter(call: Call) -> None:
    call.token = _current.set(call)


def leave(call: Call) -> None:
    """The caller's own span is the current one again."""
    if call.otel_token is not None:
        context.detach(call.otel_token)
        call.otel_token = None
    if call.token is not None:
        _current.reset(call.token)
        call.token = None


def forget() -> None:
    """After a fault of ours: whatever was entered is no longer the current call."""
    _current.set(None)
