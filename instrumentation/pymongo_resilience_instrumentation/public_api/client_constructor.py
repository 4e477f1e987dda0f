"""What runs in place of a client's constructor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation.clients import client_options
from pymongo_resilience_instrumentation.interception.methods import Method
from pymongo_resilience_instrumentation.telemetry import client_tracing

from . import client_setup

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime


def constructor(runtime: Runtime) -> Method:
    """A client's ``__init__``: it gets our listeners beside its own, and gives us our options."""

    def around(original: Function) -> Function:
        def construct(client: Any, *args: Any, **kwargs: Any) -> None:
            # Also while it is switched off: an application that gives the option has to start.
            (args, kwargs), adaptive = client_options.take(args, kwargs)
            kwargs, tracing_option = client_tracing.take(kwargs)
            given = kwargs.get("event_listeners")
            selector = client_options.server_selector(kwargs)
            # What is no sequence, None included, is the driver's to refuse.
            refused = not isinstance(kwargs.get("event_listeners", ()), Sequence)
            if refused or not runtime.enabled_flag.on:
                original(client, *args, **kwargs)
                return
            client_options.refuse_negative_timeout(args, kwargs)
            with shielded("before a client was made"):
                kwargs["event_listeners"] = client_setup.configure(
                    runtime, client, given or (), adaptive, tracing_option
                )
                client_setup.select_for(runtime, client, selector, kwargs)
            original(client, *args, **kwargs)
            with shielded("after a client was made"):
                runtime.deprecated.register(client)

        return construct

    return Method(around)
