"""What a session knows of timeouts: its default, and what is left inside of with_transaction.

Source: Client Side Operations Timeout, "Sessions" and "Convenient Transactions API".
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo.errors import ConfigurationError, InvalidOperation

from pymongo_resilience import blocks
from pymongo_resilience.option_types import TIMEOUT_MS, shown
from pymongo_resilience.policy import NOTHING, Policy
from pymongo_resilience_instrumentation import calls, driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience.blocks import Block

OPTION = "default_timeout_ms"
# Private attributes of the session: changed by others, transactions would end too soon or too late.
_DEFAULT = "_pymongo_resilience_default"
_TRANSACTION = "_pymongo_resilience_transaction"


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
    vars(session)[_DEFAULT] = default


def default_of(session: Any) -> Policy:
    """What commit_transaction, abort_transaction, with_transaction and end_session have."""
    default: Policy = vars(session).get(_DEFAULT, NOTHING)
    return default


class TransactionDeadline(NamedTuple):
    """The one deadline of a with_transaction, for the operations with its session."""

    timeout: driver.deadline.RunningTimeout
    timed: Block | None
    """The ``override`` with a timeout around with_transaction."""
    began: float
    """On the clock of the driver's deadlines, in seconds."""

    def refuse_others(self) -> None:
        """Raises InvalidOperation where the callback gives an operation a timeout of its own.

        What a call puts in force for itself, and for those inside of it, is none of the callback's.
        """
        timed = blocks.timed()
        inside = timed is not None and timed is not self.timed
        if not inside and calls.current() is None:
            inside = (
                driver.deadline.timeout_in_force() is not None
                and not driver.deadline.runs_already()
            )
        if inside:
            raise InvalidOperation(
                "inside of with_transaction an operation with its session has what remains of the "
                "transaction's timeout, and none of its own: put the override() or "
                "pymongo.timeout() around with_transaction"
            )


def enter_transaction(session: Any, deadline: TransactionDeadline) -> None:
    """The session is in the callback from now on."""
    vars(session)[_TRANSACTION] = deadline


def leave_transaction(session: Any) -> None:
    vars(session).pop(_TRANSACTION, None)


def transaction_of(session: Any) -> TransactionDeadline | None:
    """The deadline of the with_transaction in whose callback a session is."""
    return getattr(session, "__dict__", {}).get(_TRANSACTION)


def session_of_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], session_at: int | None, asynchronous: bool
) -> Any:
    """The session that a method is called with, or that is bound around it; None for none."""
    session = kwargs.get("session")
    if session is None and session_at is not None and len(args) > session_at:
        session = args[session_at]
    return driver.sessions.bound_session(asynchronous) if session is None else session


def transaction_of_any(session: Any, asynchronous: bool) -> TransactionDeadline | None:
    """The deadline of the with_transaction of ``session``, or of the one that is bound around."""
    return transaction_of(_or_bound(session, asynchronous))


def _or_bound(session: Any, asynchronous: bool) -> Any:
    return driver.sessions.bound_session(asynchronous) if session is None else session


def position(method: Callable[..., Any] | None) -> int | None:
    """Where among the positional arguments of a method its session is, not counting ``self``."""
    # Of the function itself, not by inspect.signature(): a hundred of those take 3 ms at start-up.
    code = getattr(inspect.unwrap(method), "__code__", None) if method else None
    names = code.co_varnames[: code.co_argcount] if code else ()
    return names.index("session") - 1 if "session" in names else None
