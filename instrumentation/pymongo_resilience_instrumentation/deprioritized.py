"""The servers that the attempts of the operation in progress have failed on.

pymongo hands them to its first look at the servers, and forgets them once selection has to wait.
Their addresses are kept here for the later looks, in the context of the operation's thread or task.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation.methods import Method

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.addresses import Address
    from pymongo_resilience_instrumentation.methods import Function

POSITION = 3
"""Of ``deprioritized_servers`` among the arguments; the driver gives it as a keyword."""

Mark = Token["tuple[Address, ...]"]

_failed: ContextVar[tuple[Address, ...]] = ContextVar(
    "pymongo_resilience_deprioritized", default=()
)


def begin() -> Mark | None:
    """An operation begins: it avoids nothing yet, whatever the one around it avoids."""
    return _failed.set(()) if _failed.get() else None


def avoid(addresses: tuple[Address, ...], mark: Mark | None) -> Mark:
    """From now on; what ``end()`` needs to go back to how it was when the operation began."""
    changed = _failed.set(addresses)
    return changed if mark is None else mark


def end(mark: Mark | None) -> None:
    """The operation is over; in force is again what the one around it avoids."""
    if mark is None:
        return
    try:
        _failed.reset(mark)
    except ValueError:
        # A coroutine that was never finished is collected in some other context.
        return


def _select(original: Function) -> Function:
    def method(description: Any, *args: Any, **kwargs: Any) -> Any:
        failed = _failed.get()
        if not failed or len(args) > POSITION:
            return original(description, *args, **kwargs)
        known = description.server_descriptions()
        avoided = [known[address] for address in failed if address in known]
        others = kwargs | {"deprioritized_servers": avoided}
        anybody = kwargs | {"deprioritized_servers": None}
        return original(description, *args, **others) or original(description, *args, **anybody)

    return method


select = Method(_select)
"""In place of the driver's look at the servers: those that failed last, where there are others.

An application's own selector may want none of the others: then all are shown to it.
"""
