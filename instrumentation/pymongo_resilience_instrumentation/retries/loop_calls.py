"""The attempts of one run of the driver's loop, inside of the call that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.timeouts.transaction_timeouts import transaction_of

from .attempts import Attempts

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.runtime import Runtime


def enter_loop(runtime: Runtime, loop: Any) -> Attempts:
    """Where it was entered without a wrapper of ours around it (a commit, a method bound before
    ``instrument()``), it gets a call of its own that keeps its deadline and ends its spans.
    """
    client = driver.retry_loop.client(loop)
    call = calls.current()
    owns_call = call is None or call.client is not client
    if call is None or owns_call:
        call = _loop_call(runtime, loop, client)
    work = Attempts(loop, call, owns_call, runtime)
    try:
        work.begin()
        if runtime.budgets.incomplete:
            work.budget = runtime.budgets.of(client)
        if runtime.breakers is not None:
            work.breakers = runtime.breakers.of(client)
        if runtime.shedding is not None:
            work.shedders = runtime.shedding.of(client)
        counts = runtime.counts_of(client)
        if counts is not None:
            work.count = counts.of_attempt()
        return work  # noqa: TRY300 - an exception of a signal handler may strike here, too
    except BaseException as error:
        work.release(error)
        raise


def after_failure(runtime: Runtime, loop: Any, reached_connection: bool) -> Attempts:
    """Of a loop whose first attempt failed, and that ran as it is until then."""
    call = calls.current()
    if call is None:
        raise RuntimeError("the call is over, and its loop is not")
    # What its listeners and hooks do from now on is prepared, or it would avoid what this does.
    call.light = False
    work = Attempts(loop, call, owns_call=False, runtime=runtime)
    work.reached_connection = reached_connection
    work.begin()
    return work


def leave_loop(work: Attempts, error: BaseException | None) -> BaseException | None:
    """As ``Runtime.end``, for the call that the loop got for itself."""
    work.release(error)
    return work.runtime.end(work.call, error) if work.owns_call else error


def _loop_call(runtime: Runtime, loop: Any, client: Any) -> Call:
    database, collection = driver.retry_loop.namespace(loop)
    name = driver.retry_loop.operation_name(loop)
    call = Call(client, name, (database, collection))
    call.public, call.unknown_concern = False, True
    call.transaction = transaction_of(driver.retry_loop.session(loop))
    runtime.enter(call)
    return call
