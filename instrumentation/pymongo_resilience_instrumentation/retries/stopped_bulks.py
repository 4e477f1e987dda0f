"""Bulk writes and insert_many that a passing failure of the server stops half-way.

The server answers ``ok: 1`` then, with NotWritablePrimary (10107) or its like for the statement at
which it stopped. The driver takes that for final. Here the command is repeated with its transaction
number, as after a writeConcernError: what has been executed is recognised, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pymongo.errors import BulkWriteError, ClientBulkWriteException
from pymongo.results import DeleteResult, InsertOneResult, UpdateResult

from pymongo_resilience.internal_errors import contain_internal_errors, logger
from pymongo_resilience.rules.strategy import MongoDB
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.failures.classify import StoppedBulk
from pymongo_resilience_instrumentation.failures.reasons import PASSING
from pymongo_resilience_instrumentation.interceptor import Entered, Function, Interceptor, Row
from pymongo_resilience_instrumentation.operation import Operation
from pymongo_resilience_instrumentation.runtime import Runtime

from . import own_documents

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Bulk

Reply = dict[str, Any]


def wrapped(runtime: Runtime) -> Iterator[Row]:
    for owner in driver.attempts.bulk_classes():
        yield owner, driver.attempts.EXECUTE_BATCH, ExecuteBatch(runtime)


class ExecuteBatch(Interceptor):
    """A bulk's method that sends one command."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        return Entered(args)

    def send(self, _entered: Entered, original: Function, *args: Any, **kwargs: Any) -> Any:
        reply, *sent = original(*args, **kwargs)
        if (batch := self._with_duplicates(args[1:], reply, sent)) is not None:
            reply, sent[0] = batch.settle()
        return reply, *sent

    async def send_async(
        self, _entered: Entered, original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        reply, *sent = await original(*args, **kwargs)
        if (batch := self._with_duplicates(args[1:], reply, sent)) is not None:
            reply, sent[0] = await batch.settle_async()
        return reply, *sent

    def _with_duplicates(
        self, args: Sequence[Any], reply: Reply, sent: Sequence[Any]
    ) -> own_documents.Batch | None:
        if not isinstance(reply, dict) or "writeErrors" not in reply:
            return None
        with contain_internal_errors("after a bulk write"):
            operation = in_progress.current()
            loop = None if operation is None else operation.loop
            return own_documents.batch_with_duplicates(loop, args[0], args[1], reply, sent[0])
        return None

    def succeeded(self, entered: Entered, result: tuple[Any, ...]) -> tuple[Any, ...]:
        (bulk, _, cmd, *_), (reply, *sent) = entered.instance, result
        return _checked(self._runtime, bulk, cmd, reply, sent[0]), *sent


def _checked(
    runtime: Runtime, bulk: Bulk, cmd: Mapping[str, Any], reply: Reply, sent: Sequence[Any]
) -> Reply:
    """The reply, as the driver is to see it. ``cmd``: without what is ``sent``."""
    # A reply of another shape is the driver's to refuse.
    with suppress(AttributeError, TypeError, KeyError):
        operation = in_progress.current()
        if not runtime.enabled_flag.on or operation is None or "error" in reply:
            return reply
        results: Sequence[Any] = ()
        if "bulkWrite" in cmd:
            # Of more than one batch, the rest is behind a cursor that the driver reads and closes.
            results = reply["cursor"]["firstBatch"] if not reply["cursor"]["id"] else ()
            errors = [each for each in results if not each["ok"]]
        else:
            errors = reply.get("writeErrors", ())
        stop = next((each for each in errors if each.get("code") in PASSING), None)
        numbered = "txnNumber" in cmd and "autocommit" not in cmd
        if stop is not None and numbered and _continued(runtime, operation, bulk, cmd, reply):
            return {**reply, "writeConcernError": StoppedBulk(stop, bulk, results)}
        goes_on = not (errors and cmd["ordered"])
        counted = reply.get("n", 0) + len(errors)
        if "insert" in cmd and goes_on and counted < len(sent):
            # MongoDB 4.4 leaves errors out where an unordered insert is repeated.
            logger.warning(
                "insert into %s: of %d documents the server counts %d and names %d errors: "
                "others may not be there",
                *(cmd["insert"], len(sent), counted - len(errors), len(errors)),
            )
    return reply


def _continued(
    runtime: Runtime, operation: Operation, bulk: Bulk, cmd: Mapping[str, Any], reply: Reply
) -> bool:
    """Whether the retry rules are to decide, and not the driver: for it, an error of a statement is
    final, and an unordered bulk goes on behind it."""
    strategy = operation.call.option(runtime.rules, "strategy") or runtime.rules.strategy
    if "writeConcernError" in reply or isinstance(strategy, MongoDB):
        return False
    # Without a deadline there is one retry: behind it the rest of an unordered bulk is sent.
    return bool(cmd["ordered"] or not bulk.retrying or driver.csot.active_timeout() is not None)


def show_as_answered(error: BulkWriteError | ClientBulkWriteException) -> None:
    """Show in the error what the server has sent, once the failure is classified."""
    details: Any = error.details
    concerns = details.get("writeConcernErrors", ())
    stop = next((each for each in concerns if isinstance(each, StoppedBulk)), None)
    if stop is None:
        return
    before = str(details)
    details["writeConcernErrors"] = [each for each in concerns if each is not stop]
    if isinstance(error, ClientBulkWriteException):
        _add_results(details, stop, error.verbose)
    error.args = (str(error.args[0]).replace(before, str(details)), *error.args[1:])


def _add_results(details: dict[str, Any], stop: StoppedBulk, verbose: bool) -> None:
    """The driver raises before it reads the results of a client's bulk."""
    for result in stop.results:
        index = result["idx"] + stop.offset
        kind, operation = stop.operations[index]
        if not result["ok"]:
            details["writeErrors"].append({**result, "idx": index, "op": operation})
        elif verbose and kind == "insert":
            details["insertResults"][index] = InsertOneResult(operation["document"]["_id"], True)
        elif verbose and kind == "delete":
            details["deleteResults"][index] = DeleteResult(result, True)
        elif verbose:
            details["updateResults"][index] = UpdateResult(result, True, in_client_bulk=True)
    details["writeErrors"].sort(key=lambda each: each["idx"])
