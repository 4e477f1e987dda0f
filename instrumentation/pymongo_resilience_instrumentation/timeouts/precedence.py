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
from pymongo_resilience_instrumentation.operation import NEVER, Operation
from pymongo_resilience_instrumentation.public_operations import Target

# A private attribute of the session: changed by others, transactions would end too soon or late.
_TRANSACTION = "_pymongo_resilience_transaction"


class TimeoutRules:
    """Immutable, so thread- and task-safe. ``csot_available``: whether the driver's timeout in
    force can be read; without it we set none. ``observes``: pymongo decides everything, so only
    timeouts that were set through this library are put in force."""

    def __init__(
        self, rules: NamespaceRules, config: Config, *, csot_available: bool, observes: bool = False
    ) -> None:
        self.csot_available = csot_available
        self._observes = observes
        self.timeout_mode = config.timeout_mode
        self._rules = rules
        self._have_timeouts = rules.have_timeouts
        self._attempt_ms = None if observes else config.attempt_timeout_ms
        self._default = None if config.timeout_ms is None else config.timeout_ms / 1000

    def set_timeout(self, operation: Operation) -> None:
        """Sets what an operation keeps of the table: its timeout, what puts that in force where
        that is ours to do, and its attempts'. Raises InvalidOperation for one of its own inside of
        with_transaction."""
        if operation.transaction is not None:
            if operation.public:
                operation.transaction.refuse_others()
            operation.limit_to(operation.transaction.timeout)
            operation.configured = operation.transaction.configured
            return
        if (self._observes or not self.csot_available) and self._is_pymongos(operation):
            return
        within, bound = operation.within, operation.bound
        rule = operation.rule(self._rules) if self._have_timeouts else NOTHING
        attempt_ms = within.attempt_timeout_ms or bound.attempt_timeout_ms
        attempt_ms = attempt_ms or rule.attempt_timeout_ms or self._attempt_ms
        if attempt_ms is not None:
            operation.attempt_timeout = attempt_ms / 1000
        # From the last row up to that of ``override``: the nearer replaces the farther.
        seconds, configured = self._default, self._default is not None
        if operation.client.options.timeout is not None:
            seconds, configured = operation.client.options.timeout, False
        if rule.timeout_ms is not None:
            seconds, configured = rule.timeout_ms / 1000, True
        if bound.timeout_ms is not None:
            seconds, configured = bound.timeout_ms / 1000, False
        if (block_ms := within.timeout_ms) is not None:
            seconds, configured = block_ms / 1000, False
        operation.own_timeout = seconds, configured
        in_force = driver.csot.timeout_in_force()
        if in_force is None and driver.csot.DEADLINE.get() == NEVER:
            operation.configured = configured
        elif not block_ms and (hidden := driver.csot.hidden_timeout()) is not None:
            operation.limit_to(hidden)
            return
        elif not block_ms or shorter(in_force or 0, block_ms / 1000) == in_force:
            operation.timeout = in_force
            operation.configured = driver.csot.is_by_configuration()
            return
        operation.timeout = seconds
        if seconds is not None:
            # Also where it is the client's own: pymongo's loop over several batches has none.
            operation.deadline = deadline = driver.csot.InForce(seconds)
            deadline.by_configuration = operation.configured

    def _is_pymongos(self, operation: Operation) -> bool:
        """Whether pymongo's own timeout applies, or none: it works as without this library."""
        if not self.csot_available:
            operation.timeout = operation.client.options.timeout
            return True
        if operation.within.timeout_ms is not None:
            return False
        own, in_force = operation.client.options.timeout, driver.csot.timeout_in_force()
        operation.pymongos_timeout = own if in_force is None else in_force
        if in_force is not None or driver.csot.DEADLINE.get() != NEVER:
            return True
        return operation.bound.timeout_ms is None and (own is not None or self._default is None)

    def of_several(
        self, client: object, target: Target, bound: Policy
    ) -> tuple[float | None, bool, bool]:
        """The seconds that several operations have together, those of a with_transaction or of a
        stream of GridFS; whether the configuration gives them; and whether they are by iteration.
        """
        if in_progress.reporting():
            return None, False, False
        in_progress.clear_inherited()
        operation = Operation(client, "", target)
        operation.public = False
        operation.bound = bound
        self.set_timeout(operation)
        mode = self.mode_of(operation) or self.timeout_mode
        configured = operation.configured
        return operation.timeout, configured, configured and mode != CURSOR_LIFETIME

    def mode_of(self, operation: Operation) -> str | None:
        """What policies say: of a block, of what the cursor is made from, of a rule."""
        mode: str | None = operation.wanted(self._rules, "timeout_mode")
        return mode


class TransactionDeadline(NamedTuple):
    """The one deadline of a with_transaction, for the operations with its session."""

    timeout: driver.csot.Timeout
    timed: Block | None
    """The ``override`` with a timeout around with_transaction."""
    began: float
    """In seconds on the driver's clock."""
    configured: bool = False
    """The library's configuration gives it, and not the application."""

    def refuse_others(self) -> None:
        """Raises InvalidOperation where the callback gives an operation a timeout of its own."""
        timed = blocks.timed()
        inside = timed is not None and timed is not self.timed
        # What an operation puts in force, for those inside of it as well, is none of the
        # callback's.
        if not inside and in_progress.current() is None:
            inside = driver.csot.timeout_in_force() is not None and not driver.csot.is_ours()
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
    vars(session).pop(_TRANSACTION, None)


def transaction_of(session: object) -> TransactionDeadline | None:
    """The deadline of the with_transaction in whose callback a session is."""
    return getattr(session, _TRANSACTION, None)


ATTRIBUTE = "_pymongo_resilience_timeout"
DEFAULT_WAIT = 1.0
"""Seconds that the server waits for news where no ``max_await_time_ms`` is set."""
OF_A_LIFE = ' for the whole life of the cursor (timeout_mode="iteration" gives each batch its own)'

OF_A_RESUME = " to resume (the next call of next() tries again where this one was)"


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
    configured: bool = False
    """The configuration gives it; see ``Operation.configured``."""
    in_use: bool = True
    """False until the first command, which goes by what was found out for it before."""

    @property
    def omits_max_time(self) -> bool:
        """The first command must not carry maxTimeMS: the server would count all batches to it."""
        return self.mode == ITERATION

    @property
    def ends(self) -> float:
        """The end of the cursor's life; ``NEVER`` where it has none."""
        if self.mode == ITERATION or not self.seconds:
            return NEVER
        return self.began + self.seconds

    def for_a_batch(self) -> driver.csot.Timeout | None:
        """What a batch that begins now has; None adds nothing to what is in force.

        A block around it, of ``override`` or of ``pymongo.timeout``, can only shorten it.
        """
        if self.seconds is None:
            return None
        own = self.seconds and self.seconds + self.wait
        seconds = shorter(own, (blocks.current().timeout_ms or 0) / 1000)
        in_force = driver.csot.timeout_in_force()
        if not seconds and (in_force is not None or driver.csot.hidden_timeout() is not None):
            return None
        seconds = shorter(seconds, in_force or 0)
        if seconds == in_force and self.ends == NEVER:
            return None
        return driver.csot.Timeout.begin(seconds).until(self.ends)


def kept_by(cursor: object) -> CursorTimeout | None:
    return getattr(cursor, ATTRIBUTE, None)


def keep(cursor: object, timeout: CursorTimeout | None) -> None:
    if timeout is not kept_by(cursor):
        setattr(cursor, ATTRIBUTE, timeout)


def cursor_timeout(
    rules: TimeoutRules, operation: Operation, cursor: Any = None, writes: str | None = None
) -> CursorTimeout | None:
    """What a cursor keeps that ``operation`` makes; None without a timeout, or with all of a
    transaction's.

    Raises ConfigurationError for a mode without a timeout, for a tailable cursor with a lifetime,
    for an aggregate by iteration that ``writes`` ($out or $merge), and for a server that would wait
    longer than the operation has. The mode of the process is a default, and no error where it
    cannot hold.
    """
    mode, tailable = rules.mode_of(operation), driver.cursors.is_tailable(cursor)
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    if mode is not None and operation.timeout is None:
        raise ConfigurationError([f"timeout_mode={mode}: expected a timeout_ms beside it"])
    if mode == CURSOR_LIFETIME and tailable:
        raise ConfigurationError([f"timeout_mode={mode}: expected iteration for a tailable cursor"])
    if mode == ITERATION and writes:
        expected = f"expected cursor_lifetime for an aggregate with {writes}"
        raise ConfigurationError([f"timeout_mode={mode}: {expected}"])
    check_max_await(operation, max_await_ms)
    if operation.timeout is None or operation.transaction is not None:
        return None
    # A method or a stream of GridFS has one deadline, and its cursors are within it.
    within_another = driver.csot.is_ours()
    if tailable:
        mode = ITERATION
    elif within_another or writes:
        mode = CURSOR_LIFETIME
    blocked = driver.csot.timeout_in_force() is not None and not blocks.current().timeout_ms
    default = ITERATION if operation.configured else CURSOR_LIFETIME
    waits = operation.configured and driver.cursors.awaits_data(cursor)
    return CursorTimeout(
        seconds=None if blocked or within_another else operation.own_timeout[0],
        mode=mode or rules.timeout_mode or default,
        began=driver.csot.now(),
        to_close=operation.timeout,
        wait=wait_for_news(cursor) if waits else 0.0,
        configured=operation.configured,
    )


def wait_for_news(cursor: Any) -> float:
    """Seconds that the server waits for a getMore's first document, where it awaits data."""
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    return max_await_ms / 1000 if max_await_ms else DEFAULT_WAIT


def advice(operation: Operation) -> str:
    """What to know about the timeout of a batch that is not the batch's own, and of a resume; ""
    for any other."""
    if operation.stream is not None:
        return OF_A_RESUME
    kept = operation.cursor
    if kept is None or operation.name != "getMore" or not kept.seconds:
        return ""
    return OF_A_LIFE if kept.ends != NEVER and operation.timeout == kept.seconds else ""


def check_max_await(operation: Operation, max_await_ms: object) -> None:
    """Raises ConfigurationError where a getMore that finds nothing could not but time out, unless
    the timeout is the configuration's, which leaves the wait for news alone."""
    if not isinstance(max_await_ms, int) or not operation.timeout or operation.configured:
        return
    if max_await_ms >= operation.timeout * 1000:
        expected = f"expected less than the timeout of {operation.timeout * 1000:g} ms"
        raise ConfigurationError([f"max_await_time_ms={max_await_ms}: {expected}"])


def write_stage(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The $out or $merge of an aggregate."""
    pipeline = args[0] if args else kwargs.get("pipeline")
    last = pipeline[-1] if isinstance(pipeline, list) and pipeline else {}
    return next((stage for stage in ("$out", "$merge") if stage in last), None)
