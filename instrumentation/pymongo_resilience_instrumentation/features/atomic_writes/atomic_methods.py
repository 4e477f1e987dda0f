"""Wraps update_many, delete_many and bulk_write for operations with the policy ``atomic``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import DeleteMany, ReadPreference, UpdateMany
from pymongo.errors import BulkWriteError, ClientBulkWriteException
from pymongo.read_concern import ReadConcern

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience_instrumentation.interceptor import Function, Sender
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_api.public_methods import PublicMethod
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.transactions.retry_transaction import run, run_async

MANY = (UpdateMany, DeleteMany)
OF_THE_SERVER = frozenset({"admin", "config", "local"})
"""Databases to which transactions cannot write."""
HIDDEN = (
    "another library has wrapped the method and hides its parameters. Call instrument() before "
    "that library, or remove its wrapper"
)
SESSION = (
    "the given session is not in a transaction. Start a transaction in it, or omit the session: "
    "the library then starts a transaction itself"
)
STANDALONE = (
    "a standalone server does not support transactions. Use a replica set; one member is enough"
)
UNACKNOWLEDGED = (
    "with write concern w=0, the outcome of the transaction would be unknown. Use w=1 or more"
)


METHODS = ("bulk_write", "delete_many", "update_many")


def plug_in(runtime: Runtime, _apply_patches: Any) -> None:
    for name in METHODS:
        sender = Sender(lambda public: AtomicWrites(public).send, by_policy=True)
        runtime.senders.setdefault(name, []).append(sender)


class AtomicWrites:
    """The atomic writes of one method of one class. Immutable, so thread- and task-safe."""

    def __init__(self, public: PublicMethod) -> None:
        self._runtime = public.runtime
        self._found = public.found
        self._asynchronous = public.asynchronous
        self._is_bulk = public.entry.method == "bulk_write"

    def send(self, operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        """Called in place of the original method."""
        if not operation.policy(self._runtime.rules).atomic:
            return original(*args, **kwargs)
        session = operation.session
        # The application's own transaction makes the write atomic already. For an object that is
        # not a session, pymongo raises its error.
        if session is not None and getattr(session, "in_transaction", True):
            return original(*args, **kwargs)
        signature = inspect.signature(self._found)
        if "session" not in signature.parameters:
            raise _refusal(operation, HIDDEN)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            # Let pymongo raise the error for invalid arguments.
            return original(*args, **kwargs)
        target, arguments = args[0], bound.arguments
        if self._is_bulk:
            models = arguments.get("requests", arguments.get("models"))
            if not isinstance(models, list) or not any(isinstance(each, MANY) for each in models):
                return original(*args, **kwargs)
            # The first error ends the transaction. Without this, the errors of later writes would
            # look transient.
            arguments["ordered"] = True
        # Inside of a transaction, only the transaction itself may have a write concern.
        concern = arguments.pop("write_concern", None) or target.write_concern
        _refuse(operation, session, concern)

        def send(session: Any) -> Any:
            # An error of an earlier try of the transaction is not the error of the operation.
            operation.outcome.begin_again()
            arguments["session"] = session
            return original(*bound.args, **bound.kwargs)

        options = {
            # A write outside of a transaction ignores the client's options, so ignore them here.
            "read_concern": ReadConcern(),
            "read_preference": ReadPreference.PRIMARY,
            "write_concern": concern,
        }
        return (_transact_async if self._asynchronous else _transact)(
            operation.client, send, options
        )


def _transact(client: Any, send: Callable[[Any], Any], options: dict[str, Any]) -> Any:
    with _counts_forgotten():
        # As for the implicit session that the write would have without a transaction.
        return run(client, send, options, causal_consistency=False)


async def _transact_async(
    client: Any, send: Callable[[Any], Awaitable[Any]], options: dict[str, Any]
) -> Any:
    with _counts_forgotten():
        return await run_async(client, send, options, causal_consistency=False)


def _refuse(operation: Operation, session: Any, concern: Any) -> None:
    """Raise ConfigurationError for writes that cannot run in a transaction, as far as the client
    can tell.

    The server refuses the rest.
    """
    if session is not None:
        raise _refusal(operation, SESSION)
    if not concern.acknowledged:
        raise _refusal(operation, UNACKNOWLEDGED)
    database, collection = operation.call.target
    if collection is not None and (database in OF_THE_SERVER or collection.startswith("system.")):
        text = f"{operation.namespace} is a system collection, to which no transaction can write"
        raise _refusal(operation, text)
    servers = operation.client.topology_description.server_descriptions().values()
    if any(server.server_type_name == "Standalone" for server in servers):
        raise _refusal(operation, STANDALONE)


def _refusal(operation: Operation, reason: str) -> ConfigurationError:
    return ConfigurationError([f"{operation.call.method} with atomic=True was not sent: {reason}"])


@contextmanager
def _counts_forgotten() -> Iterator[None]:
    """Reset the counts in a bulk write's error, because the transaction undid its writes."""
    try:
        yield
    except (BulkWriteError, ClientBulkWriteException) as error:
        details: Any = error.details
        text_before = str(details)
        for name, value in details.items():
            if name == "anySuccessful":
                details[name] = False
            elif isinstance(value, int) and not isinstance(value, bool):
                details[name] = 0
            elif name == "upserted":
                details[name] = []
            elif name in ("insertResults", "updateResults", "deleteResults"):
                details[name] = {}
        if error.args:
            error.args = (str(error.args[0]).replace(text_before, str(details)), *error.args[1:])
        raise
