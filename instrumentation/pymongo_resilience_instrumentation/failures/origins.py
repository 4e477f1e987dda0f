"""Where an error of the driver came from, after how many attempts, and why there was no further
one, said by the error itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo.errors import PyMongoError

    from pymongo_resilience.rules.failure import RetryReason
    from pymongo_resilience.rules.retry_rules import Rule


def attempts_text(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def state_origin(
    error: PyMongoError,
    *,
    server: str | None,
    attempts: int,
    reasons: Sequence[RetryReason] = (),
    rule: Rule | None = None,
    why: str = "",
    answered: bool = False,
) -> None:
    """Give ``error`` the attributes ``server`` (``"host:port"``, None where none was selected),
    ``attempts``, ``retry_reasons`` (one for each retry) and ``retry_rule`` (by which there was no
    further one; None where there was nothing to decide), and its text the same at its end: ``why``
    is the rule in words. What a server ``answered`` to the only attempt is the application's, and
    its text stays as it is. Once: an error may be raised again.

    Source: Retryable Reads, "If a retry attempt fails": the server is the one that it came from.
    """
    if "attempts" in vars(error):
        return
    vars(error).update(
        server=server, attempts=attempts, retry_reasons=tuple(reasons), retry_rule=rule
    )
    if answered and attempts == 1:
        return
    if error.args and isinstance(error.args[0], str):
        facts = [attempts_text(attempts)] if server is None else [server, attempts_text(attempts)]
        text = "; ".join(filter(None, [", ".join(facts), why]))
        error.args = (f"{error.args[0]} ({text})", *error.args[1:])
