"""Strategies, and what one of your own is given and answers; docs/options.md says how."""

from pymongo_resilience.rules.failure import Failure
from pymongo_resilience.rules.retry_state import RetryState
from pymongo_resilience.rules.strategy import (
    BestEffort,
    FastFail,
    MongoDB,
    RetryAction,
    RetryStrategy,
)

__all__ = [
    "BestEffort",
    "Failure",
    "FastFail",
    "MongoDB",
    "RetryAction",
    "RetryState",
    "RetryStrategy",
]
