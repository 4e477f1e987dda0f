"""What holds for the operations of one block of code or of some namespaces, over what holds for
the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pymongo_resilience.option_types import (
    ATTEMPT_TIMEOUT_MS,
    HEDGE,
    PRIORITY,
    TIMEOUT_MODE,
    TIMEOUT_MS,
    OptionType,
)
from pymongo_resilience.rules.strategy import check_strategy

if TYPE_CHECKING:
    from pymongo_resilience.rules.strategy import RetryStrategy


_Number = TypeVar("_Number", int, float)
TimeoutMode = Literal["cursor_lifetime", "iteration"]
Priority = Literal["high", "normal", "low"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A field left at None inherits. Immutable, so thread- and task-safe.

    Raises TypeError for a field of a wrong type, and ValueError for a timeout out of range or a
    mode or priority that does not exist.
    """

    idempotent: bool | None = None
    """The caller declares that repeating the writes it holds for does no harm."""
    strategy: RetryStrategy | None = None
    data: Mapping[str, Any] | None = field(default=None, repr=False)
    """The caller's own facts; only the strategy sees them, as ``operation.data``."""
    timeout_ms: int | None = None
    """Milliseconds that each operation has, its retries included; 0 disables the timeout."""
    timeout_mode: TimeoutMode | None = None
    """Whether a cursor has the timeout for its whole life, or for each batch it fetches."""
    attempt_timeout_ms: int | None = None
    """Milliseconds that what was sent may stay unanswered, before it is given up and repeated."""
    priority: Priority | None = None
    """Which operations are refused first with load shedding; normal where nothing names one."""
    hedge: bool | int | None = None
    """Milliseconds after which an unanswered read is sent to a second server as well; True is the
    95th percentile of its collection, False is never."""
    resumable: bool | None = None
    """Whether a find goes on after a batch that failed; for finds in the order of ``_id``."""
    atomic: bool | None = None
    """Writes to many documents run in a transaction of the library's, which is repeated."""

    def __post_init__(self) -> None:
        # Only types are named: the data may be confidential, and so may be what is given for it.
        for name in ("idempotent", "resumable", "atomic"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise TypeError(f"{name} is of type {type(value).__name__}: expected a bool")
        for name, least in (("timeout_ms", 0), ("attempt_timeout_ms", 1)):
            value = getattr(self, name)
            if value is not None:
                _check_timeout(name, value, least)
        _check_name("timeout_mode", self.timeout_mode, TIMEOUT_MODE)
        _check_name("priority", self.priority, PRIORITY)
        if self.hedge is not None:
            _check_hedge(self.hedge)
        if self.strategy is not None:
            check_strategy(self.strategy)
        if self.data is not None and not isinstance(self.data, Mapping):
            raise TypeError(f"data is of type {type(self.data).__name__}: expected a mapping")

    def over(self, outer: Policy) -> Policy:
        """This policy where it says something, ``outer`` elsewhere."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        return Policy(
            **{name: getattr(outer, name) if v is None else v for name, v in mine.items()}
        )

    def within(self, outer: Policy) -> Policy:
        """As ``over``, for a block inside of another: of two timeouts the shorter holds."""
        both = self.over(outer)
        if self.timeout_ms is None or outer.timeout_ms is None:
            return both
        return replace(both, timeout_ms=shorter(self.timeout_ms, outer.timeout_ms))


def shorter(one: _Number, other: _Number) -> _Number:
    """The shorter of two timeouts; 0 disables one (Client-Side Operations Timeout, "min(a, b)")."""
    return min(one, other) or max(one, other)


def _check_timeout(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is of type {type(value).__name__}: expected an int")
    kind = ATTEMPT_TIMEOUT_MS if least else TIMEOUT_MS
    if not kind.legal(value):
        raise ValueError(f"{name}={value}: expected {kind.allowed}")


def _check_hedge(value: object) -> None:
    if not isinstance(value, int):
        raise TypeError(f"hedge is of type {type(value).__name__}: expected a bool or an int")
    if not HEDGE.legal(value):
        raise ValueError(f"hedge={value}: expected {HEDGE.allowed}")


def _check_name(field_name: str, value: object, kind: OptionType) -> None:
    if value is None or kind.legal(value):
        return
    if not isinstance(value, str):
        raise TypeError(f"{field_name} is of type {type(value).__name__}: expected a str")
    raise ValueError(f"{field_name}={value!r}: expected {kind.allowed}")


NOTHING = Policy()
