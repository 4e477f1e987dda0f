"""Who says how long an operation may take: here, and nowhere else; and the timeout of a cursor,
which outlives the operation that made it.

The first row that applies holds:

| where | seconds | ends |
|---|---|---|
| in a ``with_transaction``, with its session | the transaction's | the transaction's |
| in ``pymongo.timeout`` and ``override`` | the shorter of the two | the sooner of the two |
| in ``pymongo.timeout``, one of 0 or None inside of it | what is left of the outer one | the same |
| in ``pymongo.timeout`` | its own | its own |
| in ``override(timeout_ms=...)`` | its own | anew for each operation |
| on what ``bind()`` or ``default_timeout_ms`` gave one | its own | anew |
| a rule for the namespace | its own | anew, "by iteration" |
| a client with ``timeoutMS`` | its own | anew |
| ``PYMONGO_RESILIENCE_TIMEOUT_MS`` | its own | anew, "by iteration" |
| elsewhere | none | never |

0 disables the timeout, and hides the rows below; of two in force it is the longer. "By iteration":
it bounds commands, and ends no cursor, change stream or stream of GridFS. Where the installed
pymongo keeps no timeouts (CSOT), the client's own is all there is.

Source: Client Side Operations Timeout, "timeoutMS", "Convenient Transactions API" and "Cursors".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from pymongo.errors import InvalidOperation

from pymongo_resilience.config import Config
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.option_types import CURSOR_LIFETIME, ITERATION
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import Block
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.policies.policy import NOTHING, Policy, shorter
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.operation import NEVER, NO_DEADLINE, Operation
from pymongo_resilience_instrumentation.public_operations import Target

# A private attribute of the session: changed by others, transactions would end too soon or late.
_TRANSACTION = "_pymongo_resilience_transaction"


class TimeoutRules:
    """Immutable, so thread- and task-safe. ``csot_available``: whether the driver's timeout in
    force can be read; without it we set none."""

    def __init__(self, rules: NamespaceRules, config: Config, *, csot_available: bool) -> None:
        self.csot_available = csot_available
        self.timeout_mode = config.timeout_mode
        self._rules = rules
        self._have_timeouts = rules.have_timeouts
        self._attempt_ms = config.attempt_timeout_ms
        self._default = None if config.timeout_ms is None else config.timeout_ms / 1000

    def of_call(self, operation: Operation) -> tuple[float | None, AbstractContextManager[None]]:
        """The seconds that an operation has, and what puts them in force where that is ours to do.
        Sets ``configured`` and ``own_timeout``. Raises InvalidOperation for one of its own inside
        of with_transaction."""
        if operation.transaction is not None:
            if operation.public:
                operation.transaction.refuse_others()
            return operation.transaction.timeout.seconds, operation.transaction.timeout.resume()
        if not self.csot_available:
            return operation.client.options.timeout, NO_DEADLINE
        around, in_force = operation.within, driver.csot.TIMEOUT.get()
        by_rule = NOTHING
        if self._have_timeouts:
            by_rule = operation.rule(self._rules)
        own, bound = around.attempt_timeout_ms, operation.bound.attempt_timeout_ms
        attempt_ms = own or bound or by_rule.attempt_timeout_ms or self._attempt_ms
        if attempt_ms is not None:
            operation.attempt_timeout = attempt_ms / 1000
        milliseconds = around.timeout_ms
        if milliseconds is None:
            milliseconds = operation.bound.timeout_ms
        configured = milliseconds is None and by_rule.timeout_ms is not None
        if configured:
            milliseconds = by_rule.timeout_ms
        if milliseconds is None:
            seconds: float | None = operation.client.options.timeout
            if seconds is None and self._default is not None:
                seconds, configured = self._default, True
        else:
            seconds = milliseconds / 1000
        operation.own_timeout = seconds, configured
        if in_force is not None or driver.csot.DEADLINE.get() != NEVER:
            return self._within_another(around.timeout_ms, in_force)
        operation.configured = configured
        # Also where it is the client's own: pymongo's loop over several batches has none.
        return seconds, NO_DEADLINE if seconds is None else driver.csot.InForce(seconds)

    def _within_another(
        self, own: int | None, in_force: float | None
    ) -> tuple[float | None, AbstractContextManager[None]]:
        """``own``: milliseconds that blocks give, inside of a ``pymongo.timeout``."""
        hidden = driver.csot.hidden_timeout()
        if hidden is not None and not own:
            return hidden.seconds, hidden.resume()
        if not own or (in_force and shorter(in_force, own / 1000) == in_force):
            return in_force, NO_DEADLINE
        # pymongo keeps the earlier of both ends.
        return own / 1000, driver.csot.InForce(own / 1000)

    def of_several(
        self, client: object, target: Target, bound: Policy
    ) -> tuple[float | None, bool]:
        """The seconds that several operations have together, a with_transaction's or those of a
        stream of GridFS; and whether they are by iteration."""
        if in_progress.reporting():
            return None, False
        in_progress.clear_inherited()
        operation = Operation(client, "", target)
        operation.public = False
        operation.bound = bound
        seconds = self.of_call(operation)[0] if self.csot_available else None
        mode = operation.rule(self._rules).timeout_mode
        return seconds, operation.configured and (mode or self.timeout_mode) != CURSOR_LIFETIME

    def mode_of(self, operation: Operation) -> str | None:
        """What policies say: of a block, of what the cursor is made from, of a rule."""
        mode = operation.within.timeout_mode or operation.bound.timeout_mode
        return mode or operation.rule(self._rules).timeout_mode


class TransactionDeadline(NamedTuple):
    """The one deadline of a with_transaction, for the operations with its session."""

    timeout: driver.csot.Timeout
    timed: Block | None
    """The ``override`` with a timeout around with_transaction."""
    began: float
    """In seconds on the driver's clock."""

    def refuse_others(self) -> None:
        """Raises InvalidOperation where the callback gives an operation a timeout of its own."""
        timed = blocks.timed()
        inside = timed is not None and timed is not self.timed
        # What an operation puts in force, for those inside of it as well, is none of the
        # callback's.
        if not inside and in_progress.current() is None:
            inside = driver.csot.timeout_in_force() is not None and not driver.csot.runs_already()
        if inside:
            raise InvalidOperation(
                "inside of with_transaction an operation with its session has what remains of the "
                "transaction's timeout, and none of its own: put the override() or "
                "pymongo.timeout() around with_transaction"
            )


def enter_transaction(session: object, deadline: TransactionDeadline) -> None:
    """The session is in the callback from now on."""
    setattr(session, _TRANSACTION, deadline)


def leave_transaction(session: object) -> None:
    with suppress(AttributeError):
        delattr(session, _TRANSACTION)


def transaction_of(session: object) -> TransactionDeadline | None:
    """The deadline of the with_transaction in whose callback a session is."""
    return getattr(session, _TRANSACTION, None)


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


def cursor_timeout(
    rules: TimeoutRules, operation: Operation, cursor: Any = None, writes: str | None = None
) -> CursorTimeout | None:
    """What a cursor keeps that ``operation`` makes; None without a timeout.

    Raises ConfigurationError for a mode without a timeout, for a tailable cursor with a lifetime,
    for an aggregate by iteration that ``writes`` ($out or $merge), and for a server that would wait
    longer than the operation has. The mode of the process is a default, and no error where it
    cannot hold.
    """
    if not rules.csot_available:
        return None
    mode, tailable = rules.mode_of(operation), driver.cursors.is_tailable(cursor)
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    if mode is not None and operation.timeout is None:
        raise ConfigurationError([f"timeout_mode={mode}: expected a timeout_ms beside it"])
    if mode == CURSOR_LIFETIME and tailable:
        raise ConfigurationError([f"timeout_mode={mode}: expected iteration for a tailable cursor"])
    check_writes(mode, writes)
    check_max_await(operation, max_await_ms)
    if operation.timeout is None:
        return None
    # What a method or a stream of GridFS reads is within the one deadline that it has.
    within_another = driver.csot.runs_already()
    if tailable:
        mode = ITERATION
    elif within_another or writes:
        mode = CURSOR_LIFETIME
    blocked = driver.csot.timeout_in_force() is not None and not blocks.current().timeout_ms
    default = ITERATION if operation.configured else CURSOR_LIFETIME
    return CursorTimeout(
        seconds=None if blocked or within_another else operation.own_timeout[0],
        mode=mode or rules.timeout_mode or default,
        began=driver.csot.now(),
        to_close=operation.timeout,
        wait=wait_for_news(cursor)
        if driver.cursors.awaits_data(cursor) and operation.configured
        else 0.0,
    )


def wait_for_news(cursor: Any) -> float:
    """Seconds that the server waits for a getMore's first document, where it awaits data."""
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    return max_await_ms / 1000 if max_await_ms else DEFAULT_WAIT


def advice(operation: Operation) -> str:
    """Why the timeout of a batch was over, where it is not the batch's own; "" for its own."""
    kept = operation.cursor
    if kept is None or operation.name != "getMore" or not kept.seconds:
        return ""
    return OF_A_LIFE if kept.ends is not None and operation.timeout == kept.seconds else ""


def check_max_await(operation: Operation, max_await_ms: object) -> None:
    """Raises ConfigurationError where a getMore that finds nothing could not but time out, unless
    the timeout is the configuration's, which leaves the wait for news alone."""
    if not isinstance(max_await_ms, int) or not operation.timeout or operation.configured:
        return
    if max_await_ms >= operation.timeout * 1000:
        expected = f"expected less than the timeout of {operation.timeout * 1000:g} ms"
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
