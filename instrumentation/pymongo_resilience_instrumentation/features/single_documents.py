"""Sends update_many and delete_many with a fixed ``_id`` as writes to one document.

Such writes carry a transaction number, so they can be retried safely. Django's ``save()`` sends
them. If the server refuses the write to one document, before anything is written, the original
write is sent, and its namespace is no longer changed in this way. Never behind mongos, where two
shards may have documents with the same ``_id``.
"""

from __future__ import annotations

import datetime as dt
import inspect
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bson import SON, Binary, Decimal128, Int64, ObjectId, Timestamp
from pymongo.errors import OperationFailure

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience.rules.strategy import MongoDB
from pymongo_resilience_instrumentation import in_progress
from pymongo_resilience_instrumentation.clients.client_registry import ByClient
from pymongo_resilience_instrumentation.interceptor import Function, Send, Sender
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.public_api.public_methods import PublicMethod
from pymongo_resilience_instrumentation.runtime import Runtime

TWINS = {"delete_many": "delete_one", "update_many": "update_one"}
REPLICA_SETS = ("ReplicaSetWithPrimary", "ReplicaSetNoPrimary")
REFUSALS = (20, 72, 263)
"""Codes with which a server refuses writes to one document before anything is written, for example
in a time-series collection.
"""
VALUES = frozenset({
    ObjectId, str, int, float, bool, bytes, dt.datetime, uuid.UUID,
    Binary, Decimal128, Int64, Timestamp,
})  # fmt: skip
"""Only exactly these types. Others may be encoded as an operator, and a regular expression is not a
value.
"""
REMEMBERED = 1000
"""Maximum number of namespaces of one client. Some applications create a collection for each
day.
"""
left_alone: ByClient[dict[str, None]] = ByClient(lambda _: {})
"""Namespaces in which the server refuses writes to one document, by client, oldest refusal
first.
"""


def plug_in(runtime: Runtime, _apply_patches: Any) -> None:
    if runtime.owns_retries:
        for name in TWINS:
            runtime.senders.setdefault(name, []).append(Sender(_sender, by_policy=False))


def _sender(public: PublicMethod) -> Send | None:
    """Return a function that sends a write to one document if possible."""
    twin = vars(public.owner).get(TWINS[public.entry.method])
    if twin is None:
        return None
    signature = inspect.signature(public.found)
    named = signature.parameters.keys()
    # The arguments are passed on by name, so the other method must have all of them. Another
    # library may have wrapped one of the two.
    if "filter" not in named or not named <= inspect.signature(twin).parameters.keys():
        return None
    single = _Single(public.runtime, twin, signature, public.asynchronous)
    return single.send_async if single.asynchronous else single.send


class _Single(NamedTuple):
    """One method of one class. Immutable, so thread- and task-safe."""

    runtime: Runtime
    twin: Any
    signature: inspect.Signature
    asynchronous: bool

    def send(self, operation: Operation, original: Function, *args: Any, **kwargs: Any) -> Any:
        send = self.write(args, kwargs)
        try:
            if send is not None:
                return send()
        except OperationFailure as error:
            _leave_alone(operation, error)
        return original(*args, **kwargs)

    async def send_async(
        self, operation: Operation, original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        send = self.write(args, kwargs)
        try:
            if send is not None:
                return await send()
        except OperationFailure as error:
            _leave_alone(operation, error)
        return await original(*args, **kwargs)

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """Return a function that sends the operation for one document, or None to send it
        unchanged.
        """
        with contain_internal_errors("before a write"):
            operation: Any = in_progress.current()
            if not pins_id(args[1] if len(args) > 1 else kwargs.get("filter")):
                return None
            if operation is None or operation.call.source is not args[0]:
                return None
            try:
                (_, target), *values = self.signature.bind(*args, **kwargs).arguments.items()
            except TypeError:
                # Let pymongo raise the error for invalid arguments.
                return None
            arguments, client = dict(values), operation.client
            session = arguments.get("session") or operation.session
            rules = self.runtime.rules
            strategy = operation.call.option(rules, "strategy") or rules.strategy
            if (
                self.runtime.enabled_flag.on
                and not isinstance(strategy, MongoDB)
                # A collation other than the collection's could match several values of ``_id``.
                and arguments.get("collation") is None
                # A write in a transaction is never retried by itself, and one without
                # acknowledgment or retryWrites carries no transaction number.
                and (session is None or not getattr(session, "in_transaction", True))
                and target.write_concern.acknowledged
                and client.options.retry_writes
                and client.topology_description.topology_type_name in REPLICA_SETS
                # Writes to these databases are not retryable either.
                and operation.call.target[0] not in ("local", "config")
                and operation.namespace not in (left_alone.known(client) or ())
            ):
                return partial(self.twin.__get__(target, type(target)), **arguments)
        return None


def _leave_alone(operation: Operation, error: OperationFailure) -> None:
    """Remember the namespace, or raise the error.

    Raises the error unless the server refused the only attempt, which proves that nothing was
    written. An earlier attempt may have been applied.
    """
    details = error.details or {}
    if error.code not in REFUSALS or details.get("n") or operation.outcome.retry_reasons:
        raise error
    refused = left_alone.of(operation.client)
    refused[operation.namespace] = None
    while len(refused) > REMEMBERED:
        refused.pop(next(iter(refused.copy()), ""), None)


def pins_id(criteria: Any) -> bool:
    """Return True if every match must have one given ``_id``.

    An ``_id`` is unique under the collation of its collection.
    """
    if type(criteria) not in (dict, SON):
        return False
    value = criteria.get("_id")
    if type(value) in (dict, SON) and len(value) == 1:
        ((operator, operand),) = value.items()
        is_single = operator == "$in" and type(operand) in (list, tuple) and len(operand) == 1
        value = operand[0] if is_single else operand if operator == "$eq" else value
    if _is_value(value):
        return True
    parts = criteria.get("$and")
    return type(parts) in (list, tuple) and any(pins_id(part) for part in parts)


def _is_value(value: Any) -> bool:
    """Return True if the filter's ``_id`` is a plain value.

    Arrays are excluded because an ``_id`` cannot be one, and null because it also matches documents
    without an ``_id``.
    """
    if type(value) in (dict, SON):
        return all(type(name) is str and not name.startswith("$") for name in value)
    return type(value) in VALUES
