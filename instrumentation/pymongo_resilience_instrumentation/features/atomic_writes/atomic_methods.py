"""update_many, delete_many and bulk_write, where ``atomic`` holds for the call."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo import DeleteMany, UpdateMany

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.clients.by_client import keep
from pymongo_resilience_instrumentation.clients.collection_kinds import Collections
from pymongo_resilience_instrumentation.interception.steps import run, run_async
from pymongo_resilience_instrumentation.transactions import call_sessions

from .refusals import refuse
from .transact import Write, transact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.interception.steps import Steps
    from pymongo_resilience_instrumentation.runtime import Runtime

MANY = (UpdateMany, DeleteMany)
HIDDEN = "another library has put a wrapper around it that hides its parameters"


class AtomicWrites:
    """Those of one method of one class. Thread- and task-safe: nothing changes."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        found: Any,
        of_clients: dict[int, Collections],
        asynchronous: bool,
    ) -> None:
        """``found``: the attribute of the class, perhaps another library's wrapper. ``of_clients``:
        what is known of collections, by the identity of their client."""
        self._runtime = runtime
        self._found = found
        self._of_clients = of_clients
        self._asynchronous = asynchronous
        self._is_bulk = name == "bulk_write"
        self._session_at = call_sessions.position(found)

    def send(self, call: Call, original: Function, *given: Any, **kwargs: Any) -> Any:
        """In place of the original, for an interceptor."""
        steps = self._plan(call, original, given, kwargs)
        if steps is None:
            return original(*given, **kwargs)
        return run_async(steps) if self._asynchronous else run(steps)

    def _plan(
        self, call: Call, original: Function, given: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Steps | None:
        """None where the call is to be sent as it is. Raises ConfigurationError where no session
        can be given to the method."""
        if not call.policy(self._runtime.rules).atomic:
            return None
        asynchronous = self._asynchronous
        if (
            call_sessions.session_of_call(given[1:], kwargs, self._session_at, asynchronous)
            is not None
        ):
            return None
        signature = inspect.signature(self._found)
        if "session" not in signature.parameters:
            raise ConfigurationError([f"{call.method} with atomic=True was not sent: {HIDDEN}"])
        try:
            bound = signature.bind(*given, **kwargs)
        except TypeError:
            # The driver's to refuse.
            return None
        target, arguments = given[0], bound.arguments
        namespaces: Sequence[str] = (call.namespace,)
        if self._is_bulk:
            models = arguments.get("requests", arguments.get("models"))
            if not isinstance(models, list) or not any(isinstance(each, MANY) for each in models):
                return None
            if "models" in arguments:
                namespaces = _namespaces(models)
            # The first error ends a transaction: what follows it would seem to be transient.
            arguments["ordered"] = True
        concern = arguments.pop("write_concern", None) or target.write_concern

        def send(session: Any) -> Any:
            arguments["session"] = session
            return original(*bound.args, **bound.kwargs)

        known = self._of_clients.get(id(call.client))
        known = known or keep(self._of_clients, call.client, Collections())
        loop = asyncio.get_running_loop() if asynchronous else None
        write = Write(self._runtime, call, concern, send, loop)
        return _steps(partial(refuse, call, concern, namespaces, known), write)


def _namespaces(models: Sequence[Any]) -> Sequence[str]:
    """Those of the models of a client's that change many documents."""
    many = [each for each in models if isinstance(each, MANY)]
    try:
        found = {driver.commands.facts_of_model(each)[2] for each in many}
    except AttributeError:  # a pymongo that lacks a name: the self-check has said so
        return ()
    return sorted(found - {""})


def _steps(refusal: Any, write: Write) -> Steps:
    yield from refusal()
    return (yield from transact(write))
