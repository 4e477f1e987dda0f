"""What runs in place of a client's constructor, and where it makes its options anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.policies.first_use import POLICIES
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients import client_options
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor
from pymongo_resilience_instrumentation.interception.methods import Method
from pymongo_resilience_instrumentation.telemetry import client_tracing, listeners

from . import client_setup

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

_GIVEN = "_pymongo_resilience_given"


def constructor(runtime: Runtime, *, hides_listeners: bool) -> Method:
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
                _note_timeout(client)
                return
            client_options.refuse_negative_timeout(args, kwargs)
            with shielded("before a client was made"):
                kwargs["event_listeners"] = client_setup.configure(
                    runtime, client, given or (), adaptive, tracing_option
                )
                client_setup.select_for(runtime, client, selector, kwargs)
            original(client, *args, **kwargs)
            _note_timeout(client)
            with shielded("after a client was made"):
                runtime.deprecated.register(client)
                client_setup.publish_little(runtime, client)
                if hides_listeners:
                    setattr(client, _GIVEN, (given, selector))
                    _show_given(client)

        return construct

    return Method(around)


class Resolved(Interceptor):
    """A client makes its options anew from what an SRV record says: what is ours is in them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def enter(self, given: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        return Entered(given[0])

    def succeeded(self, entered: Entered, result: Any) -> Any:
        with shielded("after an SRV record was resolved"):
            _show_given(entered.instance)
            client_setup.publish_little(self._runtime, entered.instance)
        return result


def _note_timeout(client: Any) -> None:
    with shielded("after a client was made"):
        if client.options.timeout is not None:
            POLICIES.use()


def _show_given(client: Any) -> None:
    """Among the client's options, what the application gave in place of what is ours."""
    hidden = getattr(client, _GIVEN, None)
    if hidden is not None:
        given, selector = hidden
        driver.clients.show_listeners(client, given, listeners.OurListener)
        driver.selection.show_selector(client, *selector)
