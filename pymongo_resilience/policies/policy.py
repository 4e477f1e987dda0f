"""Policy: what holds for the operations of a block, a namespace or a bound collection, over what
holds for the process. bind(): a collection or a database that carries its policy.

Nothing of the driver is imported: what is bound is asked for what pymongo's classes have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypedDict, TypeVar, Unpack

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import (
    ATTEMPT_TIMEOUT_MS,
    BOOLEAN,
    HEDGE,
    MAPPING,
    TIMEOUT_MODE,
    TIMEOUT_MS,
    OptionType,
    TimeoutMode,
    check_keywords,
    names_its_fields,
    problems_in,
    wrong_type,
)
from pymongo_resilience.rules.strategy import NAMED, NAMES, RetryStrategy, check_strategy

_Number = TypeVar("_Number", int, float)
T = TypeVar("T")
ATTRIBUTE = "_pymongo_resilience_policy"
BOUND_CLASSES = 64
"""How many are kept: there are four, and those an application derives from them."""


class PolicyFields(TypedDict, total=False):
    """The fields of a :class:`Policy` by keyword."""

    idempotent: bool | None
    strategy: RetryStrategy | str | None
    data: Mapping[str, Any] | None
    timeout_ms: int | None
    timeout_mode: TimeoutMode | None
    attempt_timeout_ms: int | None
    hedge: bool | int | None
    resumable: bool | None
    atomic: bool | None


@names_its_fields
@dataclass(frozen=True, slots=True)
class Policy:
    """A field left at None inherits. Immutable, so thread- and task-safe.

    Raises :class:`ConfigurationError` that names every illegal value, and TypeError for a field
    that does not exist and for what is no strategy.
    """

    idempotent: bool | None = field(default=None, metadata={"kind": BOOLEAN})
    """The caller declares that repeating the writes it holds for does no harm."""
    strategy: RetryStrategy | str | None = None
    """Given by its name, it is the strategy of that name."""
    data: Mapping[str, Any] | None = field(default=None, repr=False, metadata={"kind": MAPPING})
    """The caller's own facts; only the strategy sees them, as ``operation.data``."""
    timeout_ms: int | None = field(default=None, metadata={"kind": TIMEOUT_MS})
    """Milliseconds that each operation has, its retries included; 0 disables the timeout."""
    timeout_mode: TimeoutMode | None = field(default=None, metadata={"kind": TIMEOUT_MODE})
    """Whether a cursor has the timeout for its whole life, or for each batch it fetches."""
    attempt_timeout_ms: int | None = field(default=None, metadata={"kind": ATTEMPT_TIMEOUT_MS})
    """Milliseconds that what was sent may stay unanswered, before it is given up and repeated."""
    hedge: bool | int | None = field(default=None, metadata={"kind": HEDGE})
    """Milliseconds after which an unanswered read is sent to a second server as well; True is the
    95th percentile of its collection, False is never."""
    resumable: bool | None = field(default=None, metadata={"kind": BOOLEAN})
    """Whether a find goes on after a batch that failed; for finds in the order of ``_id``."""
    atomic: bool | None = field(default=None, metadata={"kind": BOOLEAN})
    """Writes to many documents run in a transaction of the library's, which is repeated."""

    def __post_init__(self) -> None:
        problems = problems_in(self)
        if isinstance(self.strategy, str):
            if not NAMES.legal(self.strategy):
                problems.append(NAMES.problem("strategy", self.strategy))
            object.__setattr__(self, "strategy", NAMED.get(self.strategy))
        elif self.strategy is not None:
            check_strategy(self.strategy)
        if problems:
            raise ConfigurationError(problems)

    def over(self, outer: Policy) -> Policy:
        """This policy where it says something, ``outer`` elsewhere."""
        if self is NOTHING or outer is NOTHING:
            return outer if self is NOTHING else self
        mine = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(outer, **{name: said for name, said in mine.items() if said is not None})

    def within(self, outer: Policy) -> Policy:
        """Like ``over``, for a block inside of another: of two timeouts the shorter holds."""
        both = self.over(outer)
        if self.timeout_ms is None or outer.timeout_ms is None:
            return both
        return replace(both, timeout_ms=shorter(self.timeout_ms, outer.timeout_ms))


def shorter(one: _Number, other: _Number) -> _Number:
    """The shorter of two timeouts; 0 disables one (Client-Side Operations Timeout, "min(a, b)")."""
    return min(one, other) or max(one, other)


FIELDS: Mapping[str, OptionType] = {
    each.name: each.metadata["kind"] for each in fields(Policy) if each.metadata
}
"""The types of all but the strategy."""
NOTHING = Policy()


def policy_from_keywords(function: str, keywords: PolicyFields) -> Policy:
    """Return the policy that a public function was given by keyword.

    Raises TypeError for an unknown keyword, which names ``function``, and what :class:`Policy`
    raises.
    """
    check_keywords(function, keywords, PolicyFields.__annotations__)
    return Policy(**keywords)


def bind(target: T, policy: Policy | None = None, /, **fields: Unpack[PolicyFields]) -> T:
    """``target``, a collection or a database of pymongo, sync or async, with a policy, or with the
    fields of one: ``bind(orders, timeout_ms=500)``.

    The original is left as it is. What is made from the result inherits the policy: its
    ``with_options``, its collections and sub-collections. Bound again, the newer policy holds where
    it says something, and the older elsewhere. Raises TypeError for anything else, and what
    :class:`Policy` raises. Thread- and task-safe, as the original is.
    """
    if policy is None:
        policy = policy_from_keywords("bind()", fields)
    elif not isinstance(policy, Policy):
        raise TypeError(wrong_type("bind(): policy", policy, "a Policy"))
    elif fields:
        raise TypeError(f"bind() takes a Policy or its fields, not both: {', '.join(fields)}")
    if not callable(getattr(type(target), "with_options", None)):
        raise TypeError(
            "bind() takes a collection or a database, "
            f"not an object of type {type(target).__name__}"
        )
    return _carrying(target, policy.over(policy_of(target)))


def policy_of(target: object) -> Policy:
    """The policy that ``target`` carries; NOTHING where it carries none."""
    if not isinstance(target, Bound):
        return NOTHING
    policy: Policy = vars(target)[ATTRIBUTE]
    return policy


def attach_policy(policy: Policy, cursor: object) -> None:
    """Keep ``policy`` on a cursor or change stream that was created under it."""
    if policy is not NOTHING:
        setattr(cursor, ATTRIBUTE, policy)


def policy_of_cursor(cursor: object) -> Policy:
    """The policy that it carries; NOTHING where it carries none."""
    # Not by vars(), which makes attributes slower on CPython 3.11: this runs for each document.
    policy: Policy = getattr(cursor, ATTRIBUTE, NOTHING)
    return policy


def _carrying(target: T, policy: Policy) -> T:
    cls: Any = type(target)
    # Not copy(): pymongo's classes take an attribute that is not set yet for a collection.
    made: T = cls.__new__(cls if issubclass(cls, Bound) else _bound_class(cls))
    vars(made).update(vars(target))
    vars(made)[ATTRIBUTE] = policy
    return made


@lru_cache(BOUND_CLASSES)
def _bound_class(cls: type) -> type:
    return type(cls.__name__, (Bound, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class Bound:
    """A collection or a database with a policy: what it makes is bound as well."""

    def with_options(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().with_options(*args, **kwargs))  # type: ignore[misc]  # pymongo's

    def __getitem__(self, name: object) -> Any:
        return self._inherit(super().__getitem__(name))  # type: ignore[misc]  # as above

    def get_collection(self, *args: Any, **kwargs: Any) -> Any:
        return self._inherit(super().get_collection(*args, **kwargs))  # type: ignore[misc]  # as above

    def create_collection(self, *args: Any, **kwargs: Any) -> Any:
        made = super().create_collection(*args, **kwargs)  # type: ignore[misc]  # as above
        return self._inherit_later(made) if hasattr(made, "__await__") else self._inherit(made)

    async def _inherit_later(self, making: Awaitable[Any]) -> Any:
        return self._inherit(await making)

    def _inherit(self, made: object) -> Any:
        return _carrying(made, policy_of(self))
