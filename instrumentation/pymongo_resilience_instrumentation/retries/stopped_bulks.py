"""Bulk writes and insert_many that an election stops half-way.

The server answers ``ok: 1`` then, with NotWritablePrimary (10107) or its like for the statement at
which it stopped. The driver takes that for final. Here the command is repeated with its transaction
number, as after a writeConcernError: what has been executed is recognised, and counted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pymongo.errors import BulkWriteError

from pymongo_resilience.internal_errors import logger, shielded
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.interception.methods import Method

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.interception.methods import Function
    from pymongo_resilience_instrumentation.runtime import Runtime

Reply = dict[str, Any]
STOPPED = frozenset({91, 189, 10107, 11600, 11602, 13435, 13436})
"""The member is no primary, or is shutting down: the statement was not executed."""


class _Stop(dict[str, Any]):
    """In place of a writeConcernError, at which the driver raises: no server has sent it."""


def wrapped(runtime: Runtime) -> Iterator[Wrapped]:
    def around(execute: Function) -> Function:
        def method(bulk: Any, bwc: Any, cmd: Any, ops: Any, client: Any) -> Any:
            reply, sent = execute(bulk, bwc, cmd, ops, client)
            return _checked(runtime, cmd, reply, sent), sent

        return method

    def around_async(execute: Function) -> Function:
        async def method(bulk: Any, bwc: Any, cmd: Any, ops: Any, client: Any) -> Any:
            reply, sent = await execute(bulk, bwc, cmd, ops, client)
            return _checked(runtime, cmd, reply, sent), sent

        return method

    for owner, asynchronous in driver.retry_loop.bulk_classes():
        yield (
            owner,
            driver.retry_loop.EXECUTE_BATCH,
            Method(around_async if asynchronous else around),
        )


def _checked(runtime: Runtime, cmd: Mapping[str, Any], reply: Reply, sent: Sequence[Any]) -> Reply:
    """The reply, as the driver is to see it. ``cmd``: without what is ``sent``."""
    # A reply of another shape is the driver's to refuse.
    with shielded("after a bulk write"), suppress(AttributeError, TypeError):
        if not runtime.enabled_flag.on or calls.current() is None:
            return reply
        errors = reply.get("writeErrors", ())
        numbered = "txnNumber" in cmd and "autocommit" not in cmd
        stop = next((each for each in errors if each.get("code") in STOPPED), None)
        if numbered and stop is not None and "writeConcernError" not in reply:
            return {**reply, "writeConcernError": _Stop(code=stop["code"])}
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


def show_as_answered(error: Exception) -> None:
    """After a decision on the error: it shows what the server has sent."""
    if not isinstance(error, BulkWriteError):
        return
    details: Any = error.details
    before = str(details)
    concerns = details.get("writeConcernErrors", ())
    kept = [each for each in concerns if not isinstance(each, _Stop)]
    if len(kept) < len(concerns):
        details["writeConcernErrors"] = kept
        error.args = (str(error.args[0]).replace(before, str(details)), *error.args[1:])
