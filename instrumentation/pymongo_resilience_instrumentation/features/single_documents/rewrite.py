"""Writes to many documents that can match but one: sent as writes to one document.

Those carry a transaction number, and so are repeated and applied once. ``docs/deviations.md`` says
where this cannot hold; there, and where the server refuses it, the call is sent as it is.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo import DeleteMany, UpdateMany
from pymongo.errors import BulkWriteError, ClientBulkWriteException, OperationFailure

from pymongo_resilience.internal_errors import logger
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.clients.by_client import keep
from pymongo_resilience_instrumentation.clients.collection_kinds import Collections
from pymongo_resilience_instrumentation.interception.methods import Method, is_async
from pymongo_resilience_instrumentation.interception.steps import run, run_async
from pymongo_resilience_instrumentation.transactions import call_sessions

from . import bulk_results
from .pinned_ids import pins_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.interception.steps import Steps
    from pymongo_resilience_instrumentation.runtime import Runtime

TWINS = {"delete_many": "delete_one", "update_many": "update_one"}
BULK = "bulk_write"
MANY: frozenset[type] = frozenset({UpdateMany, DeleteMany})
_UNNUMBERED = frozenset({"local", "config"})
"""Databases of a server's own."""
FAULT = "internal error in pymongo-resilience before a write"
REFUSALS = frozenset({
    2,  # BadValue
    9,  # FailedToParse
    20,  # IllegalOperation
    61,  # ShardKeyNotFound
    72,  # InvalidOptions: a single document of a time-series collection
})  # fmt: skip
"""What a server refuses a write to one document with, before anything is written."""


def around(
    runtime: Runtime,
    method: Method,
    name: str,
    *,
    originals: Mapping[str, Any],
    of_clients: dict[int, Collections],
    bulks: bool,
) -> Method:
    """``method``, of the public API, around what sends a write to one document where it can.

    ``originals``: the methods of its class, as they were before. ``of_clients``: what is known of
    collections, by the identity of their client. ``bulks``: models can be looked into.
    """
    twin = originals.get(TWINS.get(name, ""))
    if not (
        runtime.owns_retries
        and runtime.config.single_document_writes
        and (twin is not None or (bulks and name == BULK))
    ):
        return method

    def wrapped(original: Function) -> Function:
        # Of the attribute of the class: ``original`` may be around another library's wrapper.
        names, asynchronous = _parameters(original), is_async(originals[name])
        others = twin is not None and not set(names or ()) <= set(_parameters(twin) or ())
        if names is None or others:
            return method.around(original)
        plans = _Plans(runtime.enabled_flag, original, twin, names, asynchronous)
        drive: Callable[[Steps], Any] = run_async if asynchronous else run
        plan = plans.plan if twin is None else plans.plan_one

        def rewritten(*given: Any, **kwargs: Any) -> Any:
            write = plan(given, kwargs)
            if write is None:
                return original(*given, **kwargs)
            client = write.call.client
            known = of_clients.get(id(client)) or keep(of_clients, client, Collections())
            return drive(write.steps(known, partial(original, *given, **kwargs)))

        return method.around(rewritten)

    return Method(wrapped)


class _Plans(NamedTuple):
    """Of one method of one class. Immutable, so thread- and task-safe."""

    flag: EnabledFlag
    original: Function
    twin: Any
    names: tuple[str, ...]
    """Of the method's parameters but ``self``."""
    asynchronous: bool

    def plan_one(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> _Write | None:
        """As ``plan``, of update_many and delete_many: most filters end it here."""
        try:
            criteria = given[1] if len(given) > 1 else kwargs.get("filter")
            if not pins_id(criteria):
                return None
        except Exception:
            logger.exception(FAULT)
            return None
        return self.plan(given, kwargs)

    def plan(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> _Write | None:
        """None where the call is to be sent as it is."""
        try:
            call = calls.current()
            if call is None or not self.flag.on or len(given) > 1 + len(self.names):
                return None
            if call.made is None or call.made[1][0] is not given[0]:
                return None
            arguments = dict(zip(self.names, given[1:], strict=False))
            if kwargs.keys() & arguments.keys() or not kwargs.keys() <= set(self.names):
                return None
            arguments.update(kwargs)
            write = self._write(call, given[0], arguments)
            if write is None or not self._may_be_retried(write, given[0], arguments):
                return None
            return write  # noqa: TRY300 - all of it is ours
        except Exception:
            logger.exception(FAULT)
            return None

    def _write(self, call: Call, target: Any, arguments: dict[str, Any]) -> _Write | None:
        original, name = self.original, self.names[0]
        if self.twin is not None:
            required = {"filter", "update"} & set(self.names)
            if arguments.get("collation") is not None or not required <= arguments.keys():
                return None
            single = partial(self.twin.__get__(target, type(target)), **arguments)
            return _Write(call, {call.namespace}, single, lambda _: original(target, **arguments))
        models = arguments.get(name)
        if type(models) is not list or MANY.isdisjoint(map(type, models)):
            return None
        many = [index for index, each in enumerate(models) if isinstance(each, tuple(MANY))]
        namespaces = set()
        for index in many:
            criteria, collation, namespace = driver.commands.facts_of_model(models[index])
            if type(models[index]) not in MANY or collation is not None or not pins_id(criteria):
                return None
            namespaces.add(call.namespace if name == "requests" else namespace)

        def send(models: Sequence[Any]) -> Any:
            return original(target, **{**arguments, name: models})

        single_models = models.copy()
        for index in many:
            single_models[index] = driver.commands.for_one_document(models[index])
        ordered = bool(arguments.get("ordered", True))
        single = partial(send, single_models)
        return _Write(call, namespaces, single, send, models, many, ordered)

    def _may_be_retried(self, write: _Write, target: Any, arguments: dict[str, Any]) -> bool:
        concern = arguments.get("write_concern") or target.write_concern
        if not (write.call.client.options.retry_writes and concern.acknowledged):
            return False
        databases = {namespace.partition(".")[0] for namespace in write.namespaces}
        if not all(databases) or not _UNNUMBERED.isdisjoint(databases):
            return False
        session = call_sessions.session_of_call((), arguments, None, self.asynchronous)
        # What is no session is the driver's to refuse.
        return session is None or not getattr(session, "in_transaction", True)


@dataclass(slots=True, eq=False, repr=False)
class _Write:
    """One call, in one thread or task, that is sent for single documents."""

    call: Call
    namespaces: set[str]
    single: Callable[[], Any]
    many: Callable[[Sequence[Any]], Any]
    """Sends models of the call as they are; of no bulk write, the call."""
    models: Sequence[Any] = ()
    rewritten: Sequence[int] = ()
    """Which of the models."""
    ordered: bool = True
    sent_as_many: Sequence[int] = ()
    before: dict[str, Any] = field(default_factory=dict)
    """The result of the other models, where not all were refused."""

    def steps(self, collections: Collections, unchanged: Callable[[], Any]) -> Steps:
        if not (yield from collections.permit(self.call.client, self.namespaces)):
            return (yield unchanged)
        retries = len(self.call.reasons)
        try:
            return (yield self.single)
        except OperationFailure as error:
            # After another attempt a refusal proves nothing: that one may have been executed.
            models = self._refused(error)
            if models is None or len(self.call.reasons) != retries:
                raise
        try:
            result = yield partial(self.many, models)
        except (BulkWriteError, ClientBulkWriteException) as error:
            result = error
        details: Any = getattr(result, "details", {})
        if not any(code in REFUSALS for _, code in bulk_results.failed(details)):
            # Else the rest failed of what it was refused for: not of being for one document.
            collections.refuse(self.namespaces)
        if self.before:
            return bulk_results.whole(self.before, result, self.sent_as_many)
        if isinstance(result, BaseException):
            raise result
        return result

    def _refused(self, error: OperationFailure) -> Sequence[Any] | None:
        """The models to be sent as they are; None where the error is to be raised."""
        details: Any = error.details
        if not isinstance(error, (BulkWriteError, ClientBulkWriteException)):
            return self.models if len(self.models) <= 1 and _is_refusal(error) else None
        if not isinstance(details, dict):
            return None
        bulk_results.show_as_many(error, self.rewritten)
        refused = [
            index
            for index, code in bulk_results.failed(details)
            if index in self.rewritten and code in REFUSALS
        ]
        if not refused or details.get("error") is not None:
            return None
        self.sent_as_many = range(refused[0], len(self.models)) if self.ordered else refused
        self.before = bulk_results.without_errors(details, refused)
        return [self.models[index] for index in self.sent_as_many]


def _is_refusal(error: OperationFailure) -> bool:
    """Whether a reply shows that nothing was written, and why."""
    details = error.details or {}
    return error.code in REFUSALS and "writeConcernError" not in details and not details.get("n")


def _parameters(method: Any) -> tuple[str, ...] | None:
    code = getattr(inspect.unwrap(method), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return names
