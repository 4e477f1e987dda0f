"""The retry strategies, and the types that a strategy of your own needs. See docs/options.md."""

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
