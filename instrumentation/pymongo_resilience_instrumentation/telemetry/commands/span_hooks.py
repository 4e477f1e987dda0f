"""The application's hooks on command spans, as opentelemetry-instrumentation-pymongo calls them.

``request_hook(span, CommandStartedEvent)``, ``response_hook(span, CommandSucceededEvent)`` and
``failed_hook(span, CommandFailedEvent)``, in the thread or task of the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import deliver, logger
from pymongo_resilience_instrumentation import calls

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Hook = Callable[[Any, Any], object]


class SpanHooks:
    """Thread- and task-safe as far as the hooks are."""

    def __init__(
        self,
        request_hook: Hook | None = None,
        response_hook: Hook | None = None,
        failed_hook: Hook | None = None,
    ) -> None:
        self.request = _harmless("request_hook", request_hook)
        self.response = _harmless("response_hook", response_hook)
        self.failed = _harmless("failed_hook", failed_hook)


def _harmless(name: str, hook: Hook | None) -> Callable[[Span, Any], None] | None:
    """The hook; what it raises is logged once, and never hurts the operation."""
    if hook is None:
        return None
    logged = False

    def call(span: Span, event: object) -> None:
        nonlocal logged
        try:
            calls.reported(hook, span, event)
        except Exception as error:
            deliver(error)
            if not logged:
                logged = True
                logger.exception("the %s raised; later errors of it are not logged", name)

    return call


NO_HOOKS = SpanHooks()
