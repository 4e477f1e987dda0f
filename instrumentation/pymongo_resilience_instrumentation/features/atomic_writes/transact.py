"""One operation that is a transaction: repeated as a whole, its session ended however it ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo import ReadPreference
from pymongo.errors import BulkWriteError, ClientBulkWriteException
from pymongo.read_concern import ReadConcern

from pymongo_resilience.closed_coroutines import closes_a_coroutine
from pymongo_resilience_instrumentation.transactions.transaction_repeats import Repetition
from pymongo_resilience_instrumentation.transactions.unfinished_sessions import end_unfinished

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.steps import Steps
    from pymongo_resilience_instrumentation.runtime import Runtime


@dataclass(frozen=True, slots=True, repr=False)
class Write:
    """What is to be sent. Without a text: it has the application's documents."""

    runtime: Runtime
    call: Call
    concern: Any
    """Its write concern, which is the transaction's."""
    send: Callable[[Any], Any]
    """With this session; a coroutine in the async API."""
    loop: asyncio.AbstractEventLoop | None
    """Of the async API."""


def transact(write: Write) -> Steps:
    """The result of the attempt that was committed. All attempts have one session: a new
    transaction ends one that could not be aborted."""
    call, runtime = write.call, write.runtime
    options = {
        # As a write has them outside of a transaction, whatever the client's are.
        "read_concern": ReadConcern(),
        "read_preference": ReadPreference.PRIMARY,
        "write_concern": write.concern,
    }
    repetition = Repetition(call.client, options, runtime, call)
    session = call.client.start_session(causal_consistency=False)
    try:
        try:
            call.whole = repetition
            result = yield from _attempts(write, repetition, session)
        except BaseException as error:
            if not _is_closed(error):
                yield session.end_session
            raise
        yield session.end_session
        return result
    finally:
        call.whole = None
        end_unfinished(session, write.loop)


def _attempts(write: Write, repetition: Repetition, session: Any) -> Steps:
    sleep = repetition.clock.sleep if write.loop is None else repetition.clock.sleep_async
    while True:
        try:
            yield from repetition.begin(session)
            result = yield partial(write.send, session)
        except BaseException as error:
            if _is_closed(error):
                raise
            _forget_counts(error)
            if not (yield from repetition.end(session, error, sleep)):
                raise
        else:
            if not (yield from repetition.end(session, None, sleep)):
                return result
        if repetition.delay > 0:
            yield partial(sleep, repetition.delay)


def _is_closed(error: BaseException) -> bool:
    """Whether nothing may be awaited any more."""
    return isinstance(error, GeneratorExit) or closes_a_coroutine(error)


def _forget_counts(error: BaseException) -> None:
    """Of a bulk write: what it had done is undone."""
    if not isinstance(error, (BulkWriteError, ClientBulkWriteException)):
        return
    details: Any = error.details
    shown = str(details)
    for name, value in details.items():
        if isinstance(value, int) and not isinstance(value, bool):
            details[name] = 0
        elif name == "upserted":
            details[name] = []
        elif name in ("insertResults", "updateResults", "deleteResults"):
            details[name] = {}
    if error.args:
        error.args = (str(error.args[0]).replace(shown, str(details)), *error.args[1:])
