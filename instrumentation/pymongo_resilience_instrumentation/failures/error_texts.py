"""What an error states to people and to telemetry: its origin, its outcome, and its safe text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pymongo.errors import ConfigurationError, ConnectionFailure, PyMongoError

from pymongo_resilience import redaction
from pymongo_resilience.errors import CircuitBreakerOpenError, OperationTimeoutError
from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience.rules.retry_rules import WITHHELD, Rule
from pymongo_resilience_instrumentation.operation import Operation

from .classify import attribute

OUTCOMES = {
    Rule.ATTEMPTS: "attempts_exhausted",
    Rule.DEADLINE: "deadline",
    Rule.OVERLOAD_WAIT: "overloaded",
    Rule.TERMINAL: "terminal",
    Rule.BUDGET: "budget",
    Rule.BREAKER: "breaker_open",
}
"""By the rule that declined a retry; the words of the telemetry contract."""


def outcome_of(operation: Operation, error: BaseException | None) -> str:
    """``ok``, ``retried_ok``, or the reason why the error reached the application."""
    outcome = operation.outcome
    if error is None:
        return "retried_ok" if outcome.attempts and outcome.is_retried else "ok"
    rule = outcome.declined_by
    if isinstance(error, OperationTimeoutError):
        rule = Rule.DEADLINE
    elif isinstance(error, CircuitBreakerOpenError):
        rule = Rule.BREAKER
    return "not_retryable" if rule is None else OUTCOMES.get(rule, "not_retryable")


def attempts_text(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


class Origin(NamedTuple):
    """Which attempt an error is from. Immutable.

    Source: Retryable Reads, "If a retry attempt fails": the server is the one that it came from.
    """

    server: str | None
    """``"host:port"``; None where none was selected."""
    stage: Stage
    attempts: int
    reasons: Sequence[RetryReason] = ()
    """One for each retry."""


def state_origin(
    error: PyMongoError, origin: Origin, rule: Rule | None = None, why: str = ""
) -> None:
    """Give ``error`` the attributes ``server``, ``attempts``, ``retry_reasons`` and ``retry_rule``
    (by which there was no further retry; None where there was nothing to decide), and its text the
    same at its end: ``why`` is the rule in words. What a server answered to the only attempt is the
    application's, and its text stays as it is, unless the rule withholds a retry that is normally
    made. Once: an error may be raised again.
    """
    if "attempts" in vars(error):
        return
    server, stage, attempts, reasons = origin
    vars(error).update(
        server=server, attempts=attempts, retry_reasons=tuple(reasons), retry_rule=rule
    )
    if stage is Stage.ANSWERED and attempts == 1 and rule not in WITHHELD:
        return
    if error.args and isinstance(error.args[0], str):
        facts = ", ".join(filter(None, [server, attempts_text(attempts)]))
        text = "; ".join(filter(None, [facts, why]))
        error.args = (f"{error.args[0]} ({text})", *error.args[1:])


def qualified_name(error: BaseException) -> str:
    cls = type(error)
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def code_name(error: BaseException) -> str | None:
    """The server's name of its error code, where it gave one: any other text stays here."""
    details = attribute(error, "details")
    return redaction.code_name(details.get("codeName") if isinstance(details, dict) else None)


def safe_message(error: BaseException) -> str:
    """Class, code and code name: no text of a server or a document leaves at default settings."""
    return redaction.error_name(error, attribute(error, "code"), code_name(error))


def local_text(error: BaseException) -> str | None:
    """Return what this machine reports: its operating system, TLS library, or resolver, a proxy's
    socket class, or pymongo about a connection. None if a server may have written the text."""
    if isinstance(error, (ConnectionFailure, ConfigurationError)):
        if attribute(error, "details"):
            return None
        text = error.args[0] if error.args else ""
        return redaction.without_secrets(text) if isinstance(text, str) else None
    if redaction.quotes_documents(error) or any(map(redaction.quotes_documents, error.args)):
        return None
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the class may be anybody's
        text = ""
    name = type(error).__name__
    return f"{name}: {redaction.without_secrets(text)}" if text else name
