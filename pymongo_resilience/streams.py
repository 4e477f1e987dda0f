"""Consumers of change streams that survive failures and restarts. See docs/change-streams.md."""

from pymongo_resilience_instrumentation.streams.consumers import AsyncChangeConsumer, ChangeConsumer
from pymongo_resilience_instrumentation.streams.tokens import (
    AsyncCollectionTokens,
    CollectionTokens,
    Tokens,
)

from pymongo_resilience.stream_rules import (
    ChangeTooLargeError,
    ForeignTokenError,
    HistoryLostError,
    OvertakenError,
    StreamError,
    StreamInvalidatedError,
)

__all__ = [
    "AsyncChangeConsumer",
    "AsyncCollectionTokens",
    "ChangeConsumer",
    "ChangeTooLargeError",
    "CollectionTokens",
    "ForeignTokenError",
    "HistoryLostError",
    "OvertakenError",
    "StreamError",
    "StreamInvalidatedError",
    "Tokens",
]
