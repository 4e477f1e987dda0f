"""The servers that the attempts of this task or thread have failed on.

pymongo hands them to its first look at the servers, and forgets them once selection has to wait.
They are kept here for the later looks. An operation inside of another, a listener's say, avoids the
same servers where others are there, which does it no harm.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

POSITION = 3
"""Of ``deprioritized_servers`` among the arguments; the driver gives it as a keyword."""

_failed: ContextVar[list[Any] | None] = ContextVar("pymongo_resilience_deprioritized", default=None)


def remember(servers: list[Any]) -> None:
    _failed.set(servers)


def forget() -> None:
    if _failed.get() is not None:
        _failed.set(None)


def select(
    wrapped: Callable[..., Any], _description: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """In place of the driver's look at the servers: those that failed last, where there are
    others."""
    failed = _failed.get()
    if failed and len(args) <= POSITION and not kwargs.get("deprioritized_servers"):
        kwargs["deprioritized_servers"] = [server.description for server in failed]
    return wrapped(*args, **kwargs)
