"""Policy: what holds for the operations of a block, a namespace or a bound collection, over what
holds for the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict, TypeVar

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
    check_field_names,
    check_keywords,
    problems_in,
)
from pymongo_resilience.rules.strategy import NAMED, NAMES, RetryStrategy, check_strategy

_Number = TypeVar("_Number", int, float)


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


@check_field_names
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
        if self is EMPTY_POLICY or outer is EMPTY_POLICY:
            return outer if self is EMPTY_POLICY else self
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
EMPTY_POLICY = Policy()


def policy_from_keywords(function: str, keywords: PolicyFields) -> Policy:
    """Return the policy that a public function was given by keyword.

    Raises TypeError for an unknown keyword, which names ``function``, and what :class:`Policy`
    raises.
    """
    check_keywords(function, keywords, PolicyFields.__annotations__)
    return Policy(**keywords)
