"""What follows a failure in a transaction: the rules of with_transaction. Pure.

Source: Convenient API for Transactions, "Sequence of Actions".
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from pymongo_resilience.failure import TRANSIENT_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType

    from pymongo_resilience.backoff import Random


class Attempt(Protocol):
    """``with attempt as session``: the transaction begins, and is committed or aborted."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool: ...


class Attempts(Protocol):
    """What ``retry_transaction()`` returns: for ``for``, or for ``async for``."""

    def __iter__(self) -> Iterator[Attempt]: ...
    def __aiter__(self) -> AsyncIterator[Attempt]: ...


UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
MAX_TIME_EXPIRED = 50
TIME_LIMIT = 120.0
"""Seconds, where there is no deadline."""
_FIRST_PAUSE, _GROWTH, _LONGEST_PAUSE = 0.005, 1.5, 0.5


class Repeat(Enum):
    """What is repeated."""

    NOTHING = "nothing"
    COMMIT = "commit"
    TRANSACTION = "transaction"


def repeat(has_label: Callable[[str], bool], code: int | None, *, committing: bool) -> Repeat:
    """After an error with these labels, of the body or of the commit."""
    if committing and has_label(UNKNOWN_COMMIT) and code != MAX_TIME_EXPIRED:
        return Repeat.COMMIT
    return Repeat.TRANSACTION if has_label(TRANSIENT_TRANSACTION) else Repeat.NOTHING


def pause(retry: int, random: Random) -> float:
    """Seconds before this retry of a transaction; the first one is 1."""
    return random() * min(_FIRST_PAUSE * _GROWTH ** min(retry, 100), _LONGEST_PAUSE)
