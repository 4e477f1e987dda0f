"""The time that an attempt may stay unanswered, ``attempt_timeout_ms``: around each reply that is
awaited, as its command's ``maxTimeMS``, and for the connection that has to be made first."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pymongo.errors import NetworkTimeout

from pymongo_resilience.rules.failure import RetryReason, Stage
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.addresses import address_text
from pymongo_resilience_instrumentation.failures.reasons import AttemptTimeoutError
from pymongo_resilience_instrumentation.interception.interceptor import Entered, Interceptor
from pymongo_resilience_instrumentation.interception.methods import Method, is_async

from .bounded_waits import within_wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience.enabled_flag import EnabledFlag
    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience.rules.retried_operation import Operation
    from pymongo_resilience.rules.retry_rules import RetryRules
    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.interception.methods import Function


CONNECTING = 1.0
"""Seconds that making a connection has at least: TCP, TLS, hello and authentication are several
round trips."""


def wrapped(runtime: Any) -> Iterator[Wrapped]:
    """What to wrap, and with what; ``max_time_ms`` limits the command itself."""
    for half in (driver.waits.SYNC_HALF, driver.waits.ASYNC_HALF):
        yield half.module("pool").Pool, driver.waits.HANDSHAKE, Connects()
    for module, name in driver.commands.receivers():
        around = _async_reply if is_async(vars(module)[name]) else _reply
        yield module, name, Method(partial(around, runtime.enabled_flag))


def _reply(flag: EnabledFlag, original: Function) -> Function:
    """Around where a reply is awaited."""
    found = calls.found

    def receive(*given: Any, **kwargs: Any) -> Any:
        call = found()
        if call is None or call.reply_within is None or not flag.on:
            return original(*given, **kwargs)
        seconds, call.reply_within = call.reply_within, None
        try:
            with driver.csot.within(seconds):
                return original(*given, **kwargs)
        except TimeoutError as error:
            raise _too_late(error, seconds) from error.__cause__

    return receive


def _async_reply(flag: EnabledFlag, original: Function) -> Function:
    found = calls.found

    async def receive(*given: Any, **kwargs: Any) -> Any:
        call = found()
        if call is None or call.reply_within is None or not flag.on:
            return await original(*given, **kwargs)
        seconds, call.reply_within = call.reply_within, None
        try:
            with driver.csot.within(seconds):
                return await original(*given, **kwargs)
        except TimeoutError as error:
            raise _too_late(error, seconds) from error.__cause__

    return receive


def _too_late(error: TimeoutError, seconds: float) -> TimeoutError:
    """Once the operation's own deadline is over, it is that one's."""
    left = driver.csot.remaining()
    return error if left is not None and left <= 0 else AttemptTimeoutError(seconds)


class _Connecting(Entered):
    __slots__ = ("ends", "seconds")

    def __init__(self, pool: Any, seconds: float) -> None:
        super().__init__(pool, within_wait(seconds))
        self.seconds = seconds
        self.ends = driver.csot.now() + seconds


class Connects(Interceptor):
    """Where an operation makes a connection: on a server that accepts it and never answers, an
    attempt would else have all the time there is."""

    def enter(self, given: tuple[Any, ...], kwargs: dict[str, Any]) -> _Connecting | None:
        call = calls.found()
        if call is None or call.attempt_timeout is None:
            return None
        if not driver.waits.connects_for_an_operation(given[1:], kwargs):
            return None
        return _Connecting(given[0], max(call.attempt_timeout, CONNECTING))

    def failed(self, making: _Connecting | None, error: BaseException, *_: Any) -> BaseException:
        if making is None or not isinstance(error, NetworkTimeout):
            return error
        left = driver.csot.remaining()
        if driver.csot.now() >= making.ends and (left is None or left > 0):
            error.__cause__ = AttemptTimeoutError(making.seconds)
            # The driver's text names a timeoutMS that was not set.
            error.args = (f"{address_text(making.instance.address)}: {error.__cause__}",)
        return error


def as_attempt_timeout(failure: Failure, operation: Operation) -> Failure:
    """A limit that the server has kept is the attempt's where the operation has time left. For want
    of that the driver sends nothing: which says nothing of the server."""
    deadline = operation.deadline
    if failure.stage is Stage.NOT_SENT or (deadline is not None and not deadline.allows(0)):
        return failure
    return replace(failure, reason=RetryReason.ATTEMPT_TIMEOUT, timed_out=False)


def bound(call: Call, rules: RetryRules, operation: Operation) -> None:
    """Before an attempt that follows one without an answer: with the client's budget spent it has
    all the time that is left, since each that is given up costs a connection, and its server work.
    """
    if rules.holds_back(operation):
        call.attempt_timeout = call.reply_within = None
