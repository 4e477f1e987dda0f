"""What holds for the operations of one block of code or of some namespaces, over what holds for
the process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from contextlib import ContextDecorator, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast

from pymongo_resilience.kinds import TIMEOUT_MODE, TIMEOUT_MS
from pymongo_resilience.strategy import check_strategy

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pymongo_resilience.strategy import RetryStrategy


_Number = TypeVar("_Number", int, float)
TimeoutMode = Literal["cursor_lifetime", "iteration"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A field left at None inherits. Immutable, so thread- and task-safe.

    Raises TypeError for a field of a wrong type, and ValueError for a timeout out of range or a
    mode that does not exist.
    """

    idempotent: bool | None = None
    """The caller declares that repeating the writes it holds for does no harm."""
    strategy: RetryStrategy | None = None
    data: Mapping[str, Any] | None = field(default=None, repr=False)
    """The caller's own facts; the strategy sees them as ``operation.data``, and nobody else."""
    timeout_ms: int | None = None
    """Milliseconds that each operation has, its retries included; 0 is without end."""
    timeout_mode: TimeoutMode | None = None
    """Whether a cursor has the timeout for its whole life, or anew for each batch it fetches."""

    def __post_init__(self) -> None:
        # Only types are named: the data may be confidential, and so may be what is given for it.
        if self.idempotent is not None and not isinstance(self.idempotent, bool):
            raise TypeError(
                f"idempotent is of type {type(self.idempotent).__name__}: expected a bool"
            )
        if self.timeout_ms is not None:
            _check_timeout(self.timeout_ms)
        if self.timeout_mode is not None and not TIMEOUT_MODE.legal(self.timeout_mode):
            _refuse_mode(self.timeout_mode)
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
    """Of two timeouts, where 0 is without end (Client-Side Operations Timeout, "min(a, b)")."""
    return min(one, other) or max(one, other)


def _check_timeout(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"timeout_ms is of type {type(value).__name__}: expected an int")
    if not TIMEOUT_MS.legal(value):
        raise ValueError(f"timeout_ms={value}: expected {TIMEOUT_MS.allowed}")


def _refuse_mode(value: object) -> NoReturn:
    if not isinstance(value, str):
        raise TypeError(f"timeout_mode is of type {type(value).__name__}: expected a str")
    raise ValueError(f"timeout_mode={value!r}: expected {TIMEOUT_MODE.allowed}")


_F = TypeVar("_F", bound="Callable[..., Any]")

NOTHING = Policy()
_current: ContextVar[Policy] = ContextVar("pymongo_resilience_policy", default=NOTHING)


_timed: ContextVar[Policy] = ContextVar("pymongo_resilience_timed", default=NOTHING)


current: Callable[[], Policy] = _current.get
"""The policy of the innermost ``override`` around the caller: on the way of every operation."""


def timed() -> Policy:
    """The policy of the innermost ``override`` around the caller that names a timeout itself.

    Whether a block was entered since is seen by its identity: two may say the same.
    """
    return _timed.get()


class override(ContextDecorator):  # noqa: N801 - reads as a statement, like contextlib's own
    """``with override(idempotent=True):`` — a policy for the operations inside.

    Works as ``with``, as ``async with``, and as a decorator, of coroutine functions too. Blocks
    nest: the inner one wins where both say something. Thread- and task-safe: bound to the current
    context; use one instance at a time.
    """

    def __init__(
        self,
        *,
        timeout_ms: int | None = None,
        timeout_mode: TimeoutMode | None = None,
        idempotent: bool | None = None,
        strategy: RetryStrategy | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self._policy = Policy(
            timeout_ms=timeout_ms,
            timeout_mode=timeout_mode,
            idempotent=idempotent,
            strategy=strategy,
            data=data,
        )
        self._tokens: list[tuple[Token[Policy], Token[Policy]]] = []

    def __enter__(self) -> Policy:
        policy = self._policy.within(_current.get())
        names_a_timeout = self._policy.timeout_ms is not None
        timed = _timed.set(policy if names_a_timeout else _timed.get())
        self._tokens.append((_current.set(policy), timed))
        return policy

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current, timed = self._tokens.pop()
        # A generator that is never finished is closed in some other context, where there is
        # nothing to take back.
        with suppress(ValueError):
            _current.reset(current)
            _timed.reset(timed)

    async def __aenter__(self) -> Policy:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: _F) -> _F:
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        async def inner(*args: Any, **kwargs: Any) -> Any:
            async with self._recreate_cm():
                return await function(*args, **kwargs)

        return cast("_F", inner)

    def _recreate_cm(self) -> override:
        # A decorated function may run in several threads at once: each call has its own block.
        block = override()
        block._policy = self._policy
        return block
