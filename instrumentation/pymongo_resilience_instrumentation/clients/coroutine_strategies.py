"""Coroutine strategies beside sync clients, which cannot await them: logged once both exist."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient

from pymongo_resilience.internal_errors import logger
from pymongo_resilience.policies.namespaces import EVERYTHING

if TYPE_CHECKING:
    from pymongo_resilience.policies.namespaces import NamespaceRules


class CoroutineStrategies:
    """Logs once. An error where the strategy is that of the process, for every retry of the
    client is refused then; else a warning, for what the client is for is unknown.

    Thread-safe but for one thing: two clients made at once may both be logged.
    """

    def __init__(self, rules: NamespaceRules) -> None:
        self._not_warned = rules.coroutines()

    def register(self, client: object) -> None:
        """A client that exists, or is being made."""
        if not self._not_warned or not isinstance(client, MongoClient):
            return
        found: dict[str, Any] = self._not_warned
        self._not_warned = {}
        logger.log(
            logging.ERROR if EVERYTHING in found else logging.WARNING,
            "a sync client cannot await a strategy and repeats nothing under it: %s",
            ", ".join(f"{type(each).__name__} for {pattern}" for pattern, each in found.items()),
        )
