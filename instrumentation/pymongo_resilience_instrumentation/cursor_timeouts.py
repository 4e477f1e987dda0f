"""The timeout of a cursor, which outlives the call that made it.

Source: Client-Side Operations Timeout, "Cursors".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymongo_resilience import blocks
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.kinds import CURSOR_LIFETIME, ITERATION
from pymongo_resilience.policy import shorter
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.calls import Timeout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from pymongo_resilience_instrumentation.calls import Call
    from pymongo_resilience_instrumentation.runtime import Runtime

ATTRIBUTE = "_pymongo_resilience_timeout"


class CursorTimeout:
    """Belongs to one cursor or change stream, and to whoever uses that."""

    __slots__ = ("began", "in_use", "mode", "seconds", "to_close")

    def __init__(self, seconds: float | None, mode: str, began: float, to_close: float) -> None:
        self.seconds = seconds
        """0 is without end; None where only a block of ``pymongo.timeout`` gave one, which holds
        for what is inside of it."""
        self.mode = mode
        self.began = began
        """On the clock of the driver's deadlines, in seconds."""
        self.to_close = to_close
        """Seconds that a ``close()`` has: as long as the operation had that made the cursor."""
        self.in_use = True
        """False until the first command, which goes by what was found out for it before."""

    @property
    def omits_max_time(self) -> bool:
        """The first command must not carry maxTimeMS: the server would count all batches to it."""
        return self.mode == ITERATION

    @property
    def ends(self) -> float | None:
        """The end of the cursor's life; None where it has none."""
        if self.mode == ITERATION or not self.seconds:
            return None
        return self.began + self.seconds

    def for_a_batch(self) -> tuple[float, AbstractContextManager[None]] | None:
        """The seconds that a batch has, and what puts them in force; None adds nothing.

        A block around it, of ``override`` or of ``pymongo.timeout``, can only shorten them.
        """
        if self.seconds is None:
            return None
        around = blocks.current().timeout_ms
        seconds = shorter(self.seconds, (around or 0) / 1000)
        in_force = driver.timeout_in_force()
        if not seconds and (in_force is not None or driver.hidden_timeout() is not None):
            return None
        known = seconds if in_force is None else shorter(seconds, in_force)
        end = self.ends
        if end is None:
            return None if known == in_force else (known, Timeout(seconds))
        return known, driver.RunningTimeout.begin(seconds).until(end).resume()


def kept_by(cursor: Any) -> CursorTimeout | None:
    kept: CursorTimeout | None = getattr(cursor, ATTRIBUTE, None)
    return kept


def keep(cursor: Any, timeout: CursorTimeout | None) -> None:
    if timeout is not kept_by(cursor):
        setattr(cursor, ATTRIBUTE, timeout)


def timeout_of(
    runtime: Runtime,
    call: Call,
    *,
    tailable: bool = False,
    max_await_ms: int | None = None,
    of_gridfs: bool = False,
) -> CursorTimeout | None:
    """What a cursor keeps that ``call`` makes; None without a timeout.

    Raises ConfigurationError for a mode without a timeout, for a tailable cursor with a lifetime,
    and for a server that would wait longer than the operation has. The mode of the process is a
    default, and no error where it cannot hold. GridFS's cursors have a life, whatever mode is set.
    """
    if not runtime.knows_timeouts:
        return None
    mode = mode_of(runtime, call)
    if mode is not None and call.timeout is None:
        raise ConfigurationError([f"timeout_mode={mode}: expected a timeout_ms beside it"])
    if mode == CURSOR_LIFETIME and tailable:
        raise ConfigurationError([f"timeout_mode={mode}: expected iteration for a tailable cursor"])
    check_max_await(call, max_await_ms)
    if call.timeout is None:
        return None
    # What a method or a stream of GridFS reads is within the one deadline that it has.
    within_another = driver.runs_already()
    if tailable:
        mode = ITERATION
    elif of_gridfs or within_another:
        mode = CURSOR_LIFETIME
    blocked = driver.timeout_in_force() is not None and not blocks.current().timeout_ms
    return CursorTimeout(
        seconds=None if blocked or within_another else runtime.timeout_without_blocks(call),
        mode=mode or runtime.config.timeout_mode or CURSOR_LIFETIME,
        began=driver.now(),
        to_close=call.timeout,
    )


def mode_of(runtime: Runtime, call: Call) -> str | None:
    """What policies say: of a block, of what the cursor is made from, of a rule."""
    said = blocks.current().timeout_mode or call.bound.timeout_mode
    return said or runtime.rules.policy_of(call.database, call.collection).timeout_mode


def check_max_await(call: Call, max_await_ms: object) -> None:
    """Raises ConfigurationError where a getMore that finds nothing could not but time out."""
    if not isinstance(max_await_ms, int) or not call.timeout:
        return
    if max_await_ms >= call.timeout * 1000:
        expected = f"expected less than the timeout of {call.timeout * 1000:g} ms"
        raise ConfigurationError([f"max_await_time_ms={max_await_ms}: {expected}"])


def check_write_stage(mode: str | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for an aggregate with $out or $merge by iteration."""
    if mode != ITERATION:
        return
    pipeline = args[0] if args else kwargs.get("pipeline")
    last = pipeline[-1] if isinstance(pipeline, list) and pipeline else {}
    for stage in ("$out", "$merge"):
        if stage in last:
            raise ConfigurationError([
                f"timeout_mode={mode}: expected cursor_lifetime for an aggregate with {stage}"
            ])  # fmt: skip
