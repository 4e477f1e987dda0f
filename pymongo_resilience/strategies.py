"""Strategies, and what one of your own is given and answers; docs/options.md says how."""

from pymongo_resilience.rules.failure import Failure
from pymongo_resilience.rules.retried_operation import Operation
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
    "Operation",
    "RetryAction",
    "RetryStrategy",
]
