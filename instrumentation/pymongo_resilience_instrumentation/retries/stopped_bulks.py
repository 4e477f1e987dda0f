"""Retries bulk writes and insert_many that a temporary failure of the server stopped halfway.

The server then replies ``ok: 1`` with an error such as NotWritablePrimary (10107) for the statement
at which it stopped. pymongo treats that as final. Here the command is retried with its transaction
number, as after a writeConcernError: the server recognizes the statements that it has applied, and
counts them.

Servers that throttle (code 16500) may have no transaction numbers. See ``throttled_bulks``.
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

from . import own_documents, throttled_bulks

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.driver.protocols import Bulk

Reply = dict[str, Any]


def wrapped(runtime: Runtime) -> Iterator[Row]:
    for owner in driver.attempts.bulk_classes():
        yield owner, driver.attempts.EXECUTE_BATCH, ExecuteBatch(runtime)


class ExecuteBatch(Interceptor):
    """Wraps the method of a bulk write that sends one command."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def enter(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Entered:
        return Entered(args)

    def send(self, _entered: Entered, original: Function, *args: Any, **kwargs: Any) -> Any:
        if (errors := throttled_bulks.take()) is not None:
            return _throttled(args[0], errors), []
        reply, *sent = original(*args, **kwargs)
        # The server has executed the command: a bug of ours must not hide its reply.
        with contain_internal_errors(own_documents.DOING):
            if (batch := self._with_duplicates(args[1:], reply, sent)) is not None:
                reply, end = batch.settle()
                sent[0] = sent[0][:end]
        return reply, *sent

    async def send_async(
        self, _entered: Entered, original: Function, *args: Any, **kwargs: Any
    ) -> Any:
        if (errors := throttled_bulks.take()) is not None:
            return _throttled(args[0], errors), []
        reply, *sent = await original(*args, **kwargs)
        with contain_internal_errors(own_documents.DOING):
            if (batch := self._with_duplicates(args[1:], reply, sent)) is not None:
                reply, end = await batch.settle_async()
                sent[0] = sent[0][:end]
        return reply, *sent

    def _with_duplicates(
        self, args: Sequence[Any], reply: Reply, sent: Sequence[Any]
    ) -> own_documents.Batch | None:
        if not isinstance(reply, dict) or not ("writeErrors" in reply or reply.get("nErrors")):
            return None
        operation = in_progress.current()
        attempts = None if operation is None else operation.attempts
        return own_documents.batch_with_duplicates(attempts, args[0], args[1], reply, sent)

    def succeeded(self, entered: Entered, result: tuple[Any, ...]) -> tuple[Any, ...]:
        (bulk, _, cmd, *_), (reply, *sent) = entered.instance, result
        if isinstance(reply, dict) and "writeErrors" in reply and "bulkWrite" not in cmd:
            settled = None
            # Let pymongo handle malformed replies.
            with suppress(AttributeError, TypeError, KeyError, IndexError):
                settled = throttled_bulks.settle(self._runtime, cmd, reply, sent[0])
            if settled is not None:
                reply, covered, error = settled
                if error is not None:
                    reply = {**reply, "writeConcernError": StoppedBulk(error, bulk, ())}
                return reply, covered
        return _checked(self._runtime, bulk, cmd, reply, sent[0]), *sent


def _throttled(bulk: Bulk, errors: Sequence[Mapping[str, Any]]) -> Reply:
    """Return a reply for statements that are held back, for which pymongo raises their errors."""
    counts = {"ok": 1.0, "n": 0, "nModified": 0}
    stop = StoppedBulk(errors[0], bulk, ())
    return {**counts, "writeErrors": list(errors), "writeConcernError": stop}


def _checked(
    runtime: Runtime, bulk: Bulk, cmd: Mapping[str, Any], reply: Reply, sent: Sequence[Any]
) -> Reply:
    """Return the reply as pymongo should see it. ``cmd`` does not contain what was ``sent``."""
    # Let pymongo handle malformed replies.
    with suppress(AttributeError, TypeError, KeyError):
        operation = in_progress.current()
        if not runtime.enabled_flag.on or operation is None or "error" in reply:
            return reply
        results: Sequence[Any] = ()
        if "bulkWrite" in cmd:
            # If there is more than one batch of results, pymongo reads the rest from a cursor and
            # closes it.
            results = reply["cursor"]["firstBatch"] if not reply["cursor"]["id"] else ()
            errors = [result for result in results if not result["ok"]]
        else:
            errors = reply.get("writeErrors", ())
        # A statement failed for a temporary reason, and the server has not tried the following
        # ones.
        stop = next((result for result in errors if result.get("code") in PASSING), None)
        numbered = "txnNumber" in cmd and "autocommit" not in cmd
        if stop is not None and numbered and _continued(runtime, operation, bulk, cmd, reply):
            # pymongo raises for a write concern error, which lets the retry rules decide.
            return {**reply, "writeConcernError": StoppedBulk(stop, bulk, results)}
        continues = not (errors and cmd["ordered"])
        counted = reply.get("n", 0) + len(errors)
        if "insert" in cmd and continues and counted < len(sent):
            # MongoDB 4.4 omits errors if an unordered insert is retried.
            logger.warning(
                "insert into %s: for %d documents, the server reports %d inserted and %d errors. "
                "The others may be missing: check which documents are stored",
                *(cmd["insert"], len(sent), counted - len(errors), len(errors)),
            )
    return reply


def _continued(
    runtime: Runtime, operation: Operation, bulk: Bulk, cmd: Mapping[str, Any], reply: Reply
) -> bool:
    """Return True if the retry rules decide.

    If pymongo decides, the error of a statement is final, and an unordered bulk write continues
    after it.
    """
    strategy = operation.call.option(runtime.rules, "strategy") or runtime.rules.strategy
    if "writeConcernError" in reply or isinstance(strategy, MongoDB):
        return False
    # Without a deadline there is a single retry. After it, the rest of an unordered bulk write is
    # sent.
    return bool(cmd["ordered"] or not bulk.retrying or driver.csot.active_timeout() is not None)


def show_as_answered(error: BulkWriteError | ClientBulkWriteException) -> None:
    """Restore in the error what the server has sent, after the failure was classified."""
    details: Any = error.details
    concerns = details.get("writeConcernErrors", ())
    stop = next((each for each in concerns if isinstance(each, StoppedBulk)), None)
    if stop is None:
        return
    before = str(details)
    details["writeConcernErrors"] = [each for each in concerns if each is not stop]
    if isinstance(error, ClientBulkWriteException):
        _add_results(details, stop, error.verbose)
    # pymongo's text contains the details, so replace them there as well.
    error.args = (str(error.args[0]).replace(before, str(details)), *error.args[1:])


def _add_results(details: dict[str, Any], stop: StoppedBulk, verbose: bool) -> None:
    """Add the results of a client bulk write. pymongo raises before it reads them."""
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
