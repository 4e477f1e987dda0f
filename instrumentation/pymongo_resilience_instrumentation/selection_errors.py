"""What runs in place of a topology's text of a failed selection: pymongo's words, and every server.

The rules of server selection are imported where a selection has failed, or someone asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience.faults import deliver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.runtime import Runtime
    from pymongo_resilience_instrumentation.wrappers import Wrapper


def error_message(runtime: Runtime) -> Wrapper:
    """A topology's text of a failed selection: after pymongo's own words, every server.

    It runs under the topology's lock, so a fault of ours is not even logged.
    """

    def wrapper(
        wrapped: Callable[..., Any], topology: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        text = wrapped(*args, **kwargs)
        if not runtime.switch.on:
            return text
        try:
            from pymongo_resilience_instrumentation.explanations import (  # noqa: PLC0415 - rarely needed
                why_not,
            )

            return f"{text} ({why_not(topology, *args)})"
        except Exception as error:  # noqa: BLE001 - the driver's text does without ours
            deliver(error)
            return text

    return wrapper
