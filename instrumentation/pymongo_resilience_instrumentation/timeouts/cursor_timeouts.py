"""The timeout of a cursor, which outlives the call that made it.

Source: Client-Side Operations Timeout, "Cursors".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import CURSOR_LIFETIME, ITERATION
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import shorter
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.calls import Call

from .precedence import TimeoutRules

ATTRIBUTE = "_pymongo_resilience_timeout"
DEFAULT_WAIT = 1.0
"""Seconds that the server waits for news where no ``max_await_time_ms`` is set."""
OF_A_LIFE = ' for the whole life of the cursor (timeout_mode="iteration" gives each batch its own)'


@dataclass(slots=True, eq=False, repr=False)
class CursorTimeout:
    """Belongs to one cursor or change stream, and to its user."""

    seconds: float | None
    """0 disables the timeout; None where only a block of ``pymongo.timeout`` gave one, which
    applies inside that block."""
    mode: str
    began: float
    """On the clock of the driver's deadlines, in seconds."""
    to_close: float
    """Seconds that a ``close()`` has: as long as the operation had that made the cursor."""
    wait: float = 0.0
    """Seconds that the server may wait for news, which a getMore has beside its own."""
    in_use: bool = True
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
        own = self.seconds and self.seconds + self.wait
        seconds = shorter(own, (around or 0) / 1000)
        in_force = driver.csot.timeout_in_force()
        if not seconds and (in_force is not None or driver.csot.hidden_timeout() is not None):
            return None
        known = seconds if in_force is None else shorter(seconds, in_force)
        end = self.ends
        if end is None:
            return None if known == in_force else (known, driver.csot.InForce(seconds))
        return known, driver.csot.Timeout.begin(seconds).until(end).resume()


def kept_by(cursor: object) -> CursorTimeout | None:
    return getattr(cursor, ATTRIBUTE, None)


def keep(cursor: object, timeout: CursorTimeout | None) -> None:
    if timeout is not kept_by(cursor):
        setattr(cursor, ATTRIBUTE, timeout)


def timeout_of(
    rules: TimeoutRules, call: Call, cursor: Any = None, writes: str | None = None
) -> CursorTimeout | None:
    """What a cursor keeps that ``call`` makes; None without a timeout.

    Raises ConfigurationError for a mode without a timeout, for a tailable cursor with a lifetime,
    for an aggregate by iteration that ``writes`` ($out or $merge), and for a server that would wait
    longer than the operation has. The mode of the process is a default, and no error where it
    cannot hold. GridFS's cursors have a life, whatever mode is set.
    """
    if not rules.csot_available:
        return None
    mode, tailable = rules.mode_of(call), driver.cursors.is_tailable(cursor)
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    if mode is not None and call.timeout is None:
        raise ConfigurationError([f"timeout_mode={mode}: expected a timeout_ms beside it"])
    if mode == CURSOR_LIFETIME and tailable:
        raise ConfigurationError([f"timeout_mode={mode}: expected iteration for a tailable cursor"])
    check_writes(mode, writes)
    check_max_await(call, max_await_ms)
    if call.timeout is None:
        return None
    # What a method or a stream of GridFS reads is within the one deadline that it has.
    within_another = driver.csot.runs_already()
    if tailable:
        mode = ITERATION
    elif within_another or writes or (driver.cursors.is_of_files(cursor) and not call.configured):
        mode = CURSOR_LIFETIME
    blocked = driver.csot.timeout_in_force() is not None and not blocks.current().timeout_ms
    default = ITERATION if call.configured else CURSOR_LIFETIME
    return CursorTimeout(
        seconds=None if blocked or within_another else call.own_timeout[0],
        mode=mode or rules.timeout_mode or default,
        began=driver.csot.now(),
        to_close=call.timeout,
        wait=wait_for_news(cursor)
        if driver.cursors.awaits_data(cursor) and call.configured
        else 0.0,
    )


def wait_for_news(cursor: Any) -> float:
    """Seconds that the server waits for a getMore's first document, where it awaits data."""
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    return max_await_ms / 1000 if max_await_ms else DEFAULT_WAIT


def advice(call: Call) -> str:
    """Why the timeout of a batch was over, where it is not the batch's own; "" for its own."""
    kept = call.cursor
    if kept is None or call.operation != "getMore" or not kept.seconds:
        return ""
    return OF_A_LIFE if kept.ends is not None and call.timeout == kept.seconds else ""


def check_max_await(call: Call, max_await_ms: object) -> None:
    """Raises ConfigurationError where a getMore that finds nothing could not but time out, unless
    the timeout is the configuration's, which leaves the wait for news alone."""
    if not isinstance(max_await_ms, int) or not call.timeout or call.configured:
        return
    if max_await_ms >= call.timeout * 1000:
        expected = f"expected less than the timeout of {call.timeout * 1000:g} ms"
        raise ConfigurationError([f"max_await_time_ms={max_await_ms}: {expected}"])


def check_writes(mode: str | None, writes: str | None) -> None:
    """Raises ConfigurationError for an aggregate by iteration that ``writes``."""
    if mode == ITERATION and writes:
        raise ConfigurationError([
            f"timeout_mode={mode}: expected cursor_lifetime for an aggregate with {writes}"
        ])  # fmt: skip


def write_stage(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The $out or $merge of an aggregate."""
    pipeline = args[0] if args else kwargs.get("pipeline")
    last = pipeline[-1] if isinstance(pipeline, list) and pipeline else {}
    return next((stage for stage in ("$out", "$merge") if stage in last), None)
