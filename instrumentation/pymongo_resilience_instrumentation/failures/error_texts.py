"""Texts of errors for users and telemetry: where an error came from, its outcome, and its safe
text.
"""

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
"""The outcome that telemetry exports, by the rule that declined a retry."""


OK = "ok"


def outcome_of(operation: Operation, error: BaseException | None) -> str:
    """Return ``ok``, ``retried_ok``, or the reason why the error reached the application."""
    outcome = operation.outcome
    if error is None:
        return "retried_ok" if outcome.attempts and outcome.is_retried else OK
    rule = outcome.declined_by
    if isinstance(error, OperationTimeoutError):
        rule = Rule.DEADLINE
    elif isinstance(error, CircuitBreakerOpenError):
        rule = Rule.BREAKER
    return "not_retryable" if rule is None else OUTCOMES.get(rule, "not_retryable")


def attempts_text(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


DUPLICATE_KEY = 11000


class Origin(NamedTuple):
    """The attempt that an error came from. Immutable.

    Source: Retryable Reads, "If a retry attempt fails": the server is that of the reported error.
    """

    server: str | None
    """``"host:port"``; None if no server was selected."""
    stage: Stage
    attempts: int
    reasons: Sequence[RetryReason] = ()
    """The reason for each retry."""


def state_origin(
    error: PyMongoError,
    origin: Origin,
    rule: Rule | None = None,
    why: str = "",
    *,
    explained: bool = False,
) -> None:
    """Add the origin of ``error`` to its attributes and to the end of its text.

    The attributes are ``server``, ``attempts``, ``retry_reasons`` and ``retry_rule``.

    Args:
        error: The error; changed only once, because it may be raised again.
        origin: The attempt.
        rule: The rule that declined a retry; None if no rule was needed.
        why: The rule in words.
        explained: Whether the text contains ``why`` even if the server answered the only attempt.
    """
    # The same error may be raised again, for example by a cursor.
    if "attempts" in vars(error):
        return
    server, stage, attempts, reasons = origin
    vars(error).update(
        server=server, attempts=attempts, retry_reasons=tuple(reasons), retry_rule=rule
    )
    # A server's answer to the only attempt is the application's own error, so leave its text alone,
    # unless a rule declined a retry that is normally made, or a setting would help.
    if stage is Stage.ANSWERED and attempts == 1 and not (explained or rule in WITHHELD):
        return
    # pymongo's errors carry their text as the first argument.
    if error.args and isinstance(error.args[0], str):
        facts = ", ".join(filter(None, [server, attempts_text(attempts)]))
        text = "; ".join(filter(None, [facts, why]))
        error.args = (f"{error.args[0]} ({text})", *error.args[1:])


MAY_BE_ITS_OWN = (
    "an earlier attempt got no reply and may have stored this document itself. Compare the stored "
    "document with yours before you write it again"
)
"""Added to a duplicate key error if an earlier attempt may have been applied."""


def has_duplicate(error: PyMongoError) -> bool:
    """Return True for a bulk write of which a statement failed with a duplicate key."""
    details = attribute(error, "details")
    errors = details.get("writeErrors") if isinstance(details, dict) else None
    return isinstance(errors, list) and any(
        isinstance(each, dict) and each.get("code") == DUPLICATE_KEY for each in errors
    )


def qualified_name(error: BaseException) -> str:
    cls = type(error)
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def code_name(error: BaseException) -> str | None:
    """Return the server's name of its error code, or None. Any other text may not be exported."""
    details = attribute(error, "details")
    return redaction.code_name(details.get("codeName") if isinstance(details, dict) else None)


def safe_message(error: BaseException) -> str:
    """Return class, code and code name: all that is exported by default."""
    return redaction.error_name(error, attribute(error, "code"), code_name(error))


def local_text(error: BaseException) -> str | None:
    """Return a text that this machine wrote, or None if a server may have written it.

    It may come from the operating system, the TLS library, the resolver, the socket class of a
    proxy, or from pymongo about a connection.
    """
    if isinstance(error, (ConnectionFailure, ConfigurationError)):
        if attribute(error, "details"):
            return None
        text = error.args[0] if error.args else ""
        return redaction.without_secrets(text) if isinstance(text, str) else None
    # pymongo's own errors may quote documents. All others were written on this machine: by the
    # operating system, the TLS library, the resolver, or the socket class of a proxy.
    if redaction.quotes_documents(error) or any(map(redaction.quotes_documents, error.args)):
        return None
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the class may be anybody's
        text = ""
    name = type(error).__name__
    return f"{name}: {redaction.without_secrets(text)}" if text else name
