"""A method of the driver's, run as it is within a context of ours: a timeout in force, say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import NO_DEADLINE

from .interceptor import Entered, Interceptor

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Within(Interceptor):
    """``begin`` returns the context, from the instance; it raises ConfigurationError to refuse."""

    def __init__(self, begin: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._begin = begin

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered | None:
        if calls.reporting():
            return None
        context = self._begin(given[0])
        return None if context is NO_DEADLINE else Entered(given[0], context)
