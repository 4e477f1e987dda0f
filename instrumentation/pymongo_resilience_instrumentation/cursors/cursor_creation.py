"""Where cursors and change streams are made: what they take along from there.

A cursor is used elsewhere than it is made, often after the block that it was made in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience.option_types import ITERATION
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import (
    ATTRIBUTE,
    NOTHING,
    Policy,
    attach_policy,
    policy_of,
    policy_of_cursor,
)
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import Call
from pymongo_resilience_instrumentation.interceptor import Function, Wrapper
from pymongo_resilience_instrumentation.runtime import Runtime
from pymongo_resilience_instrumentation.timeouts import cursor_timeouts
from pymongo_resilience_instrumentation.timeouts.cursor_timeouts import keep

WATCH = ("pipeline", "full_document", "resume_after", "max_await_time_ms")
"""The first parameters of each ``watch``."""


def made(runtime: Runtime) -> Wrapper:
    """A cursor's ``__init__``: it remembers what is around it. Not around ``find`` and its like,
    which may be bound before this is put on."""

    enabled_flag, found = runtime.enabled_flag, calls.found

    def wrapper(original: Function, cursor: Any, args: Any, kwargs: Any) -> None:
        original(*args, **kwargs)
        call = found()
        # What the driver makes inside of a call is used up there, under the call's own policy.
        if enabled_flag.on and (call is None or call.ended):
            with shielded("after a cursor was made"):
                _attach_policy(policy_of(cursor.collection), cursor)

    return wrapper


def find(runtime: Runtime, collection: Callable[[Any], Any]) -> Wrapper:
    """Another ``find``; ``collection``: from whatever has it to the collection that it finds in."""

    def wrapper(original: Function, instance: Any, args: Any, kwargs: Any) -> Any:
        cursor = original(*args, **kwargs)
        if runtime.enabled_flag.on and calls.current() is None:
            with shielded("after a cursor was made"):
                _attach_policy(policy_of(collection(instance)), cursor)
        return cursor

    return wrapper


def clone(runtime: Runtime) -> Wrapper:
    """What copies a cursor: the copy has what the original was made with."""

    def wrapper(original: Function, cursor: Any, args: Any, kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        with shielded("after a cursor was copied"):
            policy = policy_of_cursor(cursor)
            if runtime.enabled_flag.on and policy_of_cursor(made) is not policy:
                # Also where it has none: the copy may have been made within a block.
                setattr(made, ATTRIBUTE, policy)
        return made

    return wrapper


def _attach_policy(bound: Policy, made: Any) -> None:
    around = NOTHING if blocks.innermost() is None else blocks.current()
    if around is NOTHING or bound is NOTHING:
        attach_policy(bound if around is NOTHING else around, made)
    else:
        attach_policy(around.over(bound), made)


def prepare(
    runtime: Runtime, gives: str | None, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Before a method of the public API that gives a cursor or a change stream.

    Raises ConfigurationError as ``timeout_of`` does, and for $out or $merge by iteration.
    """
    if gives == "change stream":
        # Always by iteration, whatever mode is set: watch has no timeoutMode.
        given = dict(zip(WATCH, args, strict=False), **kwargs)
        cursor_timeouts.check_max_await(call, given.get("max_await_time_ms"))
    elif gives == "cursor":
        writes = cursor_timeouts.write_stage(args, kwargs)
        if call.transaction is None:
            call.cursor = cursor_timeouts.timeout_of(runtime.timeouts, call, writes=writes)
        else:
            cursor_timeouts.check_writes(runtime.timeouts.mode_of(call), writes)


def after(runtime: Runtime, gives: str | None) -> Callable[[Call, Any], None] | None:
    """What to do with the cursor or change stream that it gave."""

    def of_a_cursor(call: Call, cursor: Any) -> None:
        if call.bound is NOTHING is blocks.current() and call.cursor is None:
            return
        _attach_policy(call.bound, cursor)
        keep(cursor, call.cursor)

    def of_a_stream(call: Call, stream: Any) -> None:
        inner = driver.cursors.cursor_of_stream(stream)
        _attach_policy(call.bound, stream)
        _attach_policy(call.bound, inner)
        if not runtime.timeouts.csot_available:
            return
        seconds, configured = call.own_timeout
        # A timeout of the configuration's leaves the wait for news alone.
        driver.cursors.set_timeout_of_each_next(stream, None if configured else seconds)
        if call.timeout is None:
            return
        each_batch, wait = seconds if configured else None, cursor_timeouts.wait_for_news(inner)
        now = driver.csot.now()
        kept = cursor_timeouts.CursorTimeout(each_batch, ITERATION, now, call.timeout, wait)
        keep(stream, kept)
        if configured:
            keep(inner, kept)

    return {"cursor": of_a_cursor, "change stream": of_a_stream}.get(gives or "")
