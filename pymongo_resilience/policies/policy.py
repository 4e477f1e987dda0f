"""Policy: settings for the operations of a block, a namespace or a bound collection."""

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
    RESUMABLE,
    TIMEOUT_MODE,
    TIMEOUT_MS,
    OptionType,
    Resumable,
    TimeoutMode,
    check_field_names,
    check_keywords,
    problems_in,
)
from pymongo_resilience.rules.strategy import NAMED, NAMES, RetryStrategy, check_strategy

_Number = TypeVar("_Number", int, float)


class PolicyFields(TypedDict, total=False):
    """The fields of a ``Policy``, as keyword arguments."""

    idempotent: bool | None
    strategy: RetryStrategy | str | None
    data: Mapping[str, Any] | None
    timeout_ms: int | None
    timeout_mode: TimeoutMode | None
    attempt_timeout_ms: int | None
    hedge: bool | int | None
    resumable: Resumable | None
    atomic: bool | None


@check_field_names
@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for some operations. Fields that are None are inherited. Immutable, so thread- and
    task-safe.

    Raises:
        ConfigurationError: Lists every invalid value.
        TypeError: If a field does not exist, or ``strategy`` is not a strategy.
    """

    idempotent: bool | None = field(default=None, metadata={"kind": BOOLEAN})
    """The caller declares that running these writes and commands twice does no harm."""
    strategy: RetryStrategy | str | None = None
    """A strategy, or the name of one. A name is replaced by its strategy."""
    data: Mapping[str, Any] | None = field(default=None, repr=False, metadata={"kind": MAPPING})
    """Arbitrary values for the strategy, which reads them from ``state.data``. Never exported."""
    timeout_ms: int | None = field(default=None, metadata={"kind": TIMEOUT_MS})
    """Milliseconds for each operation, including its retries. 0 disables the timeout."""
    timeout_mode: TimeoutMode | None = field(default=None, metadata={"kind": TIMEOUT_MODE})
    """Whether the timeout covers a cursor's whole life, or each batch."""
    attempt_timeout_ms: int | None = field(default=None, metadata={"kind": ATTEMPT_TIMEOUT_MS})
    """Milliseconds that one attempt may wait for its reply before it is retried."""
    hedge: bool | int | None = field(default=None, metadata={"kind": HEDGE})
    """Milliseconds after which an unanswered read is also sent to a second server. True uses the
    95th percentile of the collection's latency; False disables hedging.
    """
    resumable: Resumable | None = field(default=None, metadata={"kind": RESUMABLE})
    """Whether a find continues after a failed batch, in the order of ``_id``. True refuses finds
    for which that is impossible; ``"if_possible"`` runs them unchanged.
    """
    atomic: bool | None = field(default=None, metadata={"kind": BOOLEAN})
    """Whether writes to many documents run in a transaction that the library starts and retries."""

    def __post_init__(self) -> None:
        problems = problems_in(self)
        if isinstance(self.strategy, str):
            if not NAMES.legal(self.strategy):
                problems.append(NAMES.problem("strategy", self.strategy))
            # The dataclass is frozen, so a name can only be replaced like this. An unknown name
            # becomes None; the error is raised below, with all the others.
            object.__setattr__(self, "strategy", NAMED.get(self.strategy))
        elif self.strategy is not None:
            check_strategy(self.strategy)
        if problems:
            raise ConfigurationError(problems)

    def over(self, outer: Policy) -> Policy:
        """Return a policy with the fields of this one. Fields that are None come from ``outer``."""
        # Most operations have at most one policy, so avoid creating another object.
        if self is EMPTY_POLICY or outer is EMPTY_POLICY:
            return outer if self is EMPTY_POLICY else self
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changes = {name: value for name, value in values.items() if value is not None}
        return replace(outer, **changes)

    def within(self, outer: Policy) -> Policy:
        """Return the policy of a block with this policy inside of a block with ``outer``.

        As ``over``, except that the shorter of two timeouts applies.
        """
        merged = self.over(outer)
        if self.timeout_ms is None or outer.timeout_ms is None:
            return merged
        return replace(merged, timeout_ms=shorter(self.timeout_ms, outer.timeout_ms))


def shorter(one: _Number, other: _Number) -> _Number:
    """Return the shorter of two timeouts. 0 means no timeout.

    Source: Client Side Operations Timeout, "min(a, b)".
    """
    # 0 is the minimum but means "unlimited"; then the other one applies.
    return min(one, other) or max(one, other)


FIELDS: Mapping[str, OptionType] = {
    field.name: field.metadata["kind"] for field in fields(Policy) if field.metadata
}
"""The types of all fields except the strategy."""
EMPTY_POLICY = Policy()


def policy_from_keywords(function: str, keywords: PolicyFields) -> Policy:
    """Return the policy that a public function was given by keyword.

    Args:
        function: The name of that function, for errors.
        keywords: The fields.

    Raises:
        TypeError: If a keyword is unknown, and in the cases of ``Policy``.
        ConfigurationError: If a value is invalid.
    """
    check_keywords(function, keywords, PolicyFields.__annotations__)
    return Policy(**keywords)
