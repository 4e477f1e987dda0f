"""The session of a call, and the default timeout that a session has.

Source: Client Side Operations Timeout, "Sessions".
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pymongo.errors import ConfigurationError

from pymongo_resilience.option_types import TIMEOUT_MS, shown
from pymongo_resilience.policies.policy import NOTHING, Policy
from pymongo_resilience_instrumentation import driver

if TYPE_CHECKING:
    from collections.abc import Callable

OPTION = "default_timeout_ms"
# A private attribute of the session: changed by others, transactions would end too soon or late.
_DEFAULT = "_pymongo_resilience_default"


def take_default(kwargs: dict[str, Any]) -> tuple[dict[str, Any], Policy]:
    """The arguments of start_session without ``default_timeout_ms``, and what it said.

    Raises ConfigurationError (pymongo's) for what is no timeout.
    """
    if OPTION not in kwargs:
        return kwargs, NOTHING
    rest = kwargs.copy()
    said = rest.pop(OPTION)
    if said is None:
        return rest, NOTHING
    if not TIMEOUT_MS.legal(said):
        raise ConfigurationError(f"{OPTION}={shown(said)}: expected {TIMEOUT_MS.allowed}")
    return rest, Policy(timeout_ms=said)


def set_default(session: Any, default: Policy) -> None:
    setattr(session, _DEFAULT, default)


def default_of(session: Any) -> Policy:
    """What commit_transaction, abort_transaction, with_transaction and end_session have."""
    default: Policy = getattr(session, _DEFAULT, NOTHING)
    return default


def session_of_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], session_at: int | None, asynchronous: bool
) -> Any:
    """The session that a method is called with, or that is bound around it; None for none."""
    session = kwargs.get("session")
    if session is None and session_at is not None and len(args) > session_at:
        session = args[session_at]
    return driver.sessions.bound_session(asynchronous) if session is None else session


def or_bound(session: Any, asynchronous: bool) -> Any:
    """The session, or the one that is bound around the caller."""
    return driver.sessions.bound_session(asynchronous) if session is None else session


def position(method: Callable[..., Any] | None) -> int | None:
    """Where among the positional arguments of a method its session is, not counting ``self``."""
    # Of the function itself, not by inspect.signature(): a hundred of those take 3 ms at start-up.
    code = getattr(inspect.unwrap(method), "__code__", None) if method else None
    names = code.co_varnames[: code.co_argcount] if code else ()
    return names.index("session") - 1 if "session" in names else None
