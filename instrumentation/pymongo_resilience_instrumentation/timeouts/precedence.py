"""Decides which timeout applies to an operation, and stores the timeouts of cursors, because a
cursor outlives the operation that created it.

The first row that matches the operation applies. Its timeout starts at the time in the last column:

| operation | timeout that applies | start of the timeout |
|---|---|---|
| in a ``with_transaction``, with its session | the transaction's | start of the transaction |
| in ``pymongo.timeout`` and in ``override`` | the shorter one | start of the one that ends first |
| in ``pymongo.timeout(0)`` inside of another one | the outer one's | start of the outer one |
| in ``pymongo.timeout`` | the block's | start of the block |
| in ``override(timeout_ms=...)`` | the block's | start of each operation |
| on an object with ``bind()`` or ``default_timeout_ms`` | the object's | start of each operation |
| in a namespace with a rule | the rule's (for commands only) | start of each operation |
| on a client with ``timeoutMS`` | the client's | start of each operation |
| any other | ``timeout_ms`` of the configuration (for commands only) | start of each operation |

If the configuration has no ``timeout_ms`` either, there is no timeout. A timeout of 0 means no
timeout: the rows below it do not apply, and it counts as longer than any other timeout.
Inside of another ``pymongo.timeout``, ``pymongo.timeout(None)`` acts like ``pymongo.timeout(0)``.
Alone, it has no effect, as in pymongo. "For commands only" means that the timeout does not end a
cursor, a change stream, or a GridFS stream. If the installed pymongo does not support CSOT, only
the client's own timeout applies.

In an incoming request with a deadline, an operation ends no later than the request, even if the
operation's timeout is longer. A cursor or stream that is used after the request is not affected.

Source: Client Side Operations Timeout, "timeoutMS", "Convenient Transactions API" and "Cursors".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pymongo.errors import InvalidOperation

from pymongo_resilience.clock import SHORTEST, Clock
from pymongo_resilience.config import Config
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.first_use import FirstUse
from pymongo_resilience.option_types import CURSOR_LIFETIME, ITERATION
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import Block
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.policies.policy import EMPTY_POLICY, Policy, shorter
from pymongo_resilience.timeout_source import TimeoutSource
from pymongo_resilience_instrumentation import driver, in_progress
from pymongo_resilience_instrumentation.call import Call
from pymongo_resilience_instrumentation.limits import NEVER, Limits
from pymongo_resilience_instrumentation.public_operations import Target

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.call import AnyClient
    from pymongo_resilience_instrumentation.driver.protocols import ChangeStream, Cursor, Session
    from pymongo_resilience_instrumentation.operation import Operation

CLOCK = Clock()
"""The clock that the ends of blocks refer to."""
# A private attribute of the session. If the application could change it, transactions would end too
# early or too late.
_TRANSACTION = "_pymongo_resilience_transaction"


class TimeoutRules:
    """The timeouts of operations. Immutable, so thread- and task-safe.

    Args:
        rules: The namespace rules.
        config: The configuration.
        csot_available: Whether pymongo's active timeout can be read. If not, the library sets none.
        observes: Whether pymongo makes all decisions. Then only timeouts that were set through this
            library are activated.
    """

    def __init__(
        self, rules: NamespaceRules, config: Config, *, csot_available: bool, observes: bool = False
    ) -> None:
        self.csot_available = csot_available
        self._observes = observes
        self.are_common = csot_available and not observes and not rules.any
        """True if ``set_common_timeout`` may be used."""
        self.timeout_mode = config.timeout_mode
        self._rules = rules
        self._have_timeouts = rules.have_timeouts
        attempt_ms = None if observes else config.attempt_timeout_ms
        self._attempt_timeout = None if attempt_ms is None else attempt_ms / 1000
        self._default = None if config.timeout_ms is None else config.timeout_ms / 1000
        has_default = self._default is not None
        self._default_source = TimeoutSource.CONFIGURATION if has_default else TimeoutSource.NONE

    def set_timeout(self, call: Call, limits: Limits) -> None:
        """Set the timeout of ``call`` and of its attempts, according to the table.

        Raises:
            InvalidOperation: If an operation inside of ``with_transaction`` has its own timeout.
                This is pymongo's class.
        """
        session = call.session
        if session is not None:
            limits.transaction = transaction_of(session)
        if limits.transaction is not None:
            if call.is_public:
                # Check only operations that the application called. Others, such as commands that
                # pymongo sends by itself, cannot have their own timeout.
                limits.transaction.refuse_others()
            limit_to(limits, limits.transaction.timeout, limits.transaction.source)
            return
        self._set_by_table(call, limits)
        if blocks.innermost() is not None and self.csot_available:
            _end_with_request(limits)

    def _set_by_table(self, call: Call, limits: Limits) -> None:
        """Set the timeout of an operation outside of ``with_transaction``, ignoring the incoming
        request.
        """
        if (self._observes or not self.csot_available) and self._is_pymongos(call, limits):
            return
        block, bound = call.block_policy, call.bound_policy
        rule = call.rule(self._rules) if self._have_timeouts else EMPTY_POLICY
        attempt_ms = block.attempt_timeout_ms or bound.attempt_timeout_ms
        attempt_ms = attempt_ms or rule.attempt_timeout_ms
        attempt_timeout = attempt_ms / 1000 if attempt_ms else self._attempt_timeout
        if attempt_timeout is not None:
            limits.attempt_timeout = attempt_timeout
        # Go from the last row of the table up to ``override``. Each row that applies replaces the
        # ones below.
        seconds, source = self._default, self._default_source
        if (of_client := call.client.options.timeout) is not None:
            seconds, source = of_client, TimeoutSource.CLIENT
        if rule.timeout_ms is not None:
            seconds, source = rule.timeout_ms / 1000, TimeoutSource.RULE
        if bound.timeout_ms is not None:
            seconds, source = bound.timeout_ms / 1000, TimeoutSource.BINDING
        if block.timeout_ms is not None:
            seconds, source = block.timeout_ms / 1000, TimeoutSource.BLOCK
        _keep_or_set(limits, seconds, source, block.timeout_ms)

    def set_common_timeout(self, call: Call, limits: Limits) -> None:
        """Do the same as ``set_timeout`` for a call without a session and without any policy.

        This is faster.
        """
        if self._attempt_timeout is not None:
            limits.attempt_timeout = self._attempt_timeout
        seconds, source = self._default, self._default_source
        if (of_client := call.client.options.timeout) is not None:
            seconds, source = of_client, TimeoutSource.CLIENT
        # Check both: inside of another ``pymongo.timeout``, ``pymongo.timeout(0)`` hides its
        # duration but not its end.
        if driver.csot.TIMEOUT.get() is not None or driver.csot.DEADLINE.get() != NEVER:
            _keep_or_set(limits, seconds, source, None)
            return
        limits.timeout = limits.own_timeout = seconds
        limits.source = limits.own_source = source
        if seconds is not None:
            # Pass these by position: calling a class with keywords is slow in CPython 3.11.
            limits.deadline = driver.csot.ActiveTimeout(seconds, None, source)

    def _is_pymongos(self, call: Call, limits: Limits) -> bool:
        """Return True if the library must not set a timeout: either pymongo enforces the one that
        applies, or none applies.
        """
        own = call.client.options.timeout
        if not self.csot_available:
            limits.timeout = own
            return True
        if call.block_policy.timeout_ms is not None:
            return False
        active = driver.csot.active_timeout()
        limits.timeout_of_pymongo = own if active is None else active
        if active is not None:
            limits.source = driver.csot.active_source()
        if active is not None or driver.csot.DEADLINE.get() != NEVER:
            return True
        return call.bound_policy.timeout_ms is None and (own is not None or self._default is None)

    def timeout_for_group(
        self, client: AnyClient, target: Target, bound: Policy
    ) -> tuple[float | None, TimeoutSource, bool]:
        """Return the timeout of a GridFS stream or method.

        An incoming request's deadline is not included, because a stream may outlive the request.

        Returns:
            The timeout in seconds, who set it, and whether it is for commands only.
        """
        if in_progress.in_foreign_call():
            return None, TimeoutSource.NONE, False
        call, limits = self._of_group(client, target, bound)
        timeout, source = limits.to_keep()
        mode = self.mode_of(call) or self.timeout_mode
        return timeout, source, source.is_configuration and mode != CURSOR_LIFETIME

    def timeout_for_transaction(
        self, client: AnyClient, target: Target, bound: Policy
    ) -> tuple[float | None, TimeoutSource]:
        """Return the timeout of a with_transaction as a whole, in seconds, and who set it."""
        if in_progress.in_foreign_call():
            return None, TimeoutSource.NONE
        _, limits = self._of_group(client, target, bound)
        return limits.timeout, limits.source

    def _of_group(self, client: AnyClient, target: Target, bound: Policy) -> tuple[Call, Limits]:
        # A task that was started inside of an ended operation must not inherit its timeout.
        in_progress.clear_inherited()
        call = Call(client, "", target, block_policy=blocks.current(), bound_policy=bound)
        limits = Limits()
        self.set_timeout(call, limits)
        return call, limits

    def mode_of(self, call: Call) -> str | None:
        """Return the first ``timeout_mode`` that is set by a block, by the object from which the
        cursor was created, or by a rule.
        """
        mode: str | None = call.option(self._rules, "timeout_mode")
        return mode


def _keep_or_set(
    limits: Limits, seconds: float | None, source: TimeoutSource, block_ms: int | None
) -> None:
    """Keep the active timeout, or set the one that the table gives."""
    limits.own_timeout, limits.own_source = seconds, source
    is_active = driver.csot.TIMEOUT.get() is not None or driver.csot.DEADLINE.get() != NEVER
    if is_active and _keep_active(limits, block_ms):
        return
    limits.timeout, limits.source = seconds, source
    if seconds is not None:
        # Activate it even if it is the client's own timeout: pymongo itself does not apply that
        # timeout to its loop over several batches.
        limits.deadline = driver.csot.ActiveTimeout(seconds, source=source)


def _keep_active(limits: Limits, block_ms: int | None) -> bool:
    """Return True if the operation keeps the active timeout, and store it in ``limits``.

    It does, unless a block of ``override`` around it has a shorter timeout.
    """
    if block_ms:
        active = driver.csot.active_timeout()
        # The block's timeout is shorter, so it replaces the active one.
        if shorter(active or 0, block_ms / 1000) != active:
            return False
    elif (hidden := driver.csot.hidden_timeout()) is not None:
        limit_to(limits, hidden, TimeoutSource.PYMONGO_TIMEOUT)
        return True
    limits.timeout = driver.csot.active_timeout()
    limits.source = driver.csot.active_source()
    return True


def limit_to(
    limits: Limits, timeout: driver.csot.Timeout, source: TimeoutSource | None = None
) -> None:
    """Set the timeout of an operation. It is active while pymongo runs.

    Without a ``source``, the source of the previous timeout is kept.
    """
    if limits.without_request is not None:
        _, limits.source = limits.without_request
        limits.without_request = None
    if source is not None:
        limits.source = source
    limits.timeout, limits.deadline = timeout.seconds, timeout.resume(limits.source)
    if blocks.innermost() is not None:
        _end_with_request(limits)


def _end_with_request(limits: Limits) -> None:
    """Shorten the timeout so that the operation ends no later than the incoming request."""
    expires_at = blocks.expires_at()
    if expires_at is None:
        return
    # Tests may replace one of the two clocks, so compare only differences.
    now = driver.csot.now()
    request_ends = now + expires_at - CLOCK.now()
    deadline = limits.deadline
    if isinstance(deadline, driver.csot.ActiveTimeout):
        ends = deadline.ends
    else:
        ends = driver.csot.DEADLINE.get()
        if ends == NEVER and limits.timeout_of_pymongo:
            # pymongo will activate the client's own timeoutMS.
            ends = now + limits.timeout_of_pymongo
    if ends <= request_ends:
        return
    limits.without_request = limits.timeout, limits.source
    if limits.source is TimeoutSource.NONE:
        limits.source = TimeoutSource.REQUEST
    # Keep the timeout positive even if the request's time is over, because 0 would disable it.
    # pymongo then raises its error before it sends anything.
    limits.timeout = max(request_ends - now, SHORTEST)
    limits.deadline = driver.csot.ActiveTimeout(limits.timeout, request_ends, limits.source)


def refresh(limits: Limits) -> None:
    """Restart the operation's timeout now."""
    timeout, _ = limits.to_keep()
    if timeout is not None:
        limit_to(limits, driver.csot.Timeout.from_now(timeout))


def leave_at_least(limits: Limits, seconds: float) -> None:
    """Extend the rest of the operation's timeout to ``seconds`` if it is shorter.

    The result is never longer than the whole timeout.
    """
    timeout, _ = limits.to_keep()
    if not timeout:
        return
    least, remaining = min(seconds, timeout), driver.csot.remaining()
    if remaining is not None and remaining < least:
        limit_to(limits, driver.csot.Timeout.from_now(least))


class TransactionDeadline(NamedTuple):
    """The single deadline of a with_transaction, for all operations with its session."""

    timeout: driver.csot.Timeout
    timed: Block | None
    """The block of ``override(timeout_ms=...)`` around with_transaction, if any."""
    began: float
    """Seconds on pymongo's clock."""
    source: TimeoutSource = TimeoutSource.NONE
    """Who set the timeout."""

    def refuse_others(self) -> None:
        """Raise InvalidOperation if the callback gives an operation its own timeout."""
        timed = blocks.timed()
        has_own_timeout = timed is not None and timed is not self.timed
        # Inside of another operation, the active timeout belongs to that operation and was not set
        # by the callback.
        if not has_own_timeout and in_progress.current() is None:
            has_own_timeout = driver.csot.active_timeout() is not None and not driver.csot.is_ours()
        if has_own_timeout:
            raise InvalidOperation(
                "an operation with the session of a with_transaction cannot have its own timeout, "
                "because it uses the rest of the transaction's timeout. Move override() or "
                "pymongo.timeout() outside of with_transaction"
            )


def enter_transaction(session: Session, deadline: TransactionDeadline) -> None:
    """Mark the session as being in the callback of a with_transaction."""
    setattr(session, _TRANSACTION, deadline)


def leave_transaction(session: Session) -> None:
    vars(session).pop(_TRANSACTION, None)


def transaction_of(session: Session | None) -> TransactionDeadline | None:
    """Return the deadline of the with_transaction whose callback is running with the session."""
    return getattr(session, _TRANSACTION, None)


ATTRIBUTE = "_pymongo_resilience_timeout"
DEFAULT_WAIT = 1.0
"""Seconds for which the server waits for new documents if ``max_await_time_ms`` is not set."""
FOR_CURSOR_LIFETIME = (
    'The timeout is for the whole life of the cursor; use timeout_mode="iteration" for a timeout '
    "per batch"
)

FOR_REQUEST = "The timeout is the time that the incoming request had left"
FOR_RESUME = (
    "The timeout is for resuming the change stream; call next() again to continue at the same "
    "position"
)


@dataclass(slots=True, eq=False, repr=False)
class CursorTimeout:
    """The timeout of one cursor or change stream. Belongs to the user of the cursor."""

    seconds: float | None
    """The timeout in seconds. 0 disables it. None if it was set by a block of ``pymongo.timeout``
    or by a GridFS operation around the cursor, because it then applies only inside of these.
    """
    mode: str
    began: float
    """Seconds on the clock of pymongo's deadlines."""
    to_close: float
    """The timeout of ``close()`` in seconds. It is the timeout of the operation that created the
    cursor.
    """
    wait: float = 0.0
    """Seconds for which the server may wait for new documents. The timeout of each batch is
    extended by them.
    """
    source: TimeoutSource = TimeoutSource.NONE
    """Who set the timeout."""
    in_use: bool = True
    """False until the cursor's first command has taken over a timeout that was set before it."""

    @property
    def omits_max_time(self) -> bool:
        """True if the first command must not have a maxTimeMS, because the server would apply it to
        all batches together.
        """
        return self.mode == ITERATION

    @property
    def ends(self) -> float:
        """The time at which the cursor's timeout ends it, or ``NEVER``."""
        if self.mode == ITERATION or not self.seconds:
            return NEVER
        return self.began + self.seconds

    def for_a_batch(self) -> driver.csot.Timeout | None:
        """Return the timeout of a batch that begins now, or None to keep the active timeout.

        A block of ``override`` or ``pymongo.timeout`` around the batch can only shorten it.
        """
        if self.seconds is None:
            return None
        # 0 stays 0, which disables the timeout.
        own = self.seconds and self.seconds + self.wait
        seconds = shorter(own, (blocks.current().timeout_ms or 0) / 1000)
        active = driver.csot.active_timeout()
        # If the cursor's own timeout is disabled by 0, a surrounding timeout still applies.
        if not seconds and (active is not None or driver.csot.hidden_timeout() is not None):
            return None
        seconds = shorter(seconds, active or 0)
        if seconds == active and self.ends == NEVER:
            return None
        return driver.csot.Timeout.begin(seconds).until(self.ends)


def kept_by(cursor: Cursor | ChangeStream) -> CursorTimeout | None:
    return getattr(cursor, ATTRIBUTE, None)


cursor_timeouts_used = FirstUse()
"""Applies the patches for cursor timeouts at the first cursor or change stream with a timeout."""


def keep(cursor: Cursor | ChangeStream, timeout: CursorTimeout | None) -> None:
    if timeout is not kept_by(cursor):
        cursor_timeouts_used.note()
        setattr(cursor, ATTRIBUTE, timeout)


def cursor_timeout(
    rules: TimeoutRules,
    call: Call,
    limits: Limits,
    cursor: Cursor | None = None,
    writes: str | None = None,
) -> CursorTimeout | None:
    """Return the timeout of the cursor that ``call`` creates, or None if it has none of its own.

    It has none if no timeout applies, or in a transaction, whose timeout covers the cursor.

    Args:
        rules: The rules for timeouts.
        call: The call that creates the cursor.
        limits: The limits of its operation.
        cursor: The cursor, if it exists already.
        writes: The $out or $merge stage of an aggregate, if any.

    Raises:
        ConfigurationError: If a policy sets a mode without a timeout, the cursor-lifetime mode for
            a tailable cursor, or the iteration mode for an aggregate that writes. Also if the
            server would wait for new documents longer than the timeout. The mode of the
            configuration is only a default and never raises this error.
    """
    mode, tailable = rules.mode_of(call), driver.cursors.is_tailable(cursor)
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    timeout, source = limits.to_keep()
    if mode is not None and timeout is None:
        raise ConfigurationError(
            [f"timeout_mode={mode} has no effect without a timeout: set timeout_ms as well"]
        )
    if mode == CURSOR_LIFETIME and tailable:
        raise ConfigurationError(
            [f"timeout_mode={mode} is impossible for a tailable cursor: use {ITERATION}"]
        )
    if mode == ITERATION and writes:
        raise ConfigurationError(
            [f"timeout_mode={mode} is impossible with {writes}: use {CURSOR_LIFETIME}"]
        )
    check_max_await(limits, max_await_ms)
    # In a transaction, the transaction's timeout covers the cursor.
    if timeout is None or limits.transaction is not None:
        return None
    # True for a cursor of a GridFS method or stream, whose single deadline covers its cursors.
    within_another = driver.csot.is_ours()
    # A tailable cursor has no end, so it cannot have a timeout for its whole life.
    if tailable:
        mode = ITERATION
    elif within_another or writes:
        mode = CURSOR_LIFETIME
    is_in_pymongo_timeout = (
        driver.csot.active_timeout() is not None and not blocks.current().timeout_ms
    )
    default = ITERATION if source.is_configuration else CURSOR_LIFETIME
    is_awaiting = source.is_configuration and driver.cursors.awaits_data(cursor)
    return CursorTimeout(
        seconds=None if is_in_pymongo_timeout or within_another else limits.own_timeout,
        mode=mode or rules.timeout_mode or default,
        began=driver.csot.now(),
        to_close=timeout,
        wait=wait_for_news(cursor) if is_awaiting else 0.0,
        source=source,
    )


def limit_cursor(
    rules: TimeoutRules,
    call: Call,
    limits: Limits,
    cursor: Cursor | None = None,
    writes: str | None = None,
) -> None:
    """Store the timeout of the cursor that an operation creates in the limits of the operation.

    Arguments and errors are those of ``cursor_timeout``.
    """
    limits.cursor = cursor_timeout(rules, call, limits, cursor, writes)


def limit_batch(limits: Limits, kept: CursorTimeout | None) -> None:
    """Apply the timeout that a cursor keeps to an operation that fetches a batch of it."""
    limits.cursor = kept
    if kept is None:
        return
    kept.in_use = True
    timeout = kept.for_a_batch()
    if timeout is not None:
        # If the application set the cursor's timeout, name it as the source, even if a shorter one
        # of a block around the batch applies: the application set that as well.
        limit_to(limits, timeout, None if kept.source.is_configuration else kept.source)


def limit_resume(limits: Limits, kept: CursorTimeout | None, least: float) -> None:
    """Extend the timeout of an operation that resumes a change stream to ``least`` seconds, if the
    configuration set it and it is shorter.

    A timeout from the configuration must not end a stream that plain pymongo would resume, and
    pymongo waits ``least`` seconds for a server.
    """
    limits.stream = kept
    timeout, source = limits.to_keep()
    if source.is_configuration and timeout and timeout < least:
        limit_to(limits, driver.csot.Timeout.begin(least))


def wait_for_news(cursor: Cursor | None) -> float:
    """Return the seconds for which the server waits for a getMore's first document."""
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    return max_await_ms / 1000 if max_await_ms else DEFAULT_WAIT


def advice(operation: Operation) -> str:
    """Return a hint for the error of an operation whose time was limited by an incoming request, a
    change stream, or the life of a cursor; otherwise "".
    """
    limits = operation.limits
    if limits.without_request is not None:
        return FOR_REQUEST
    if limits.stream is not None:
        return FOR_RESUME
    kept = limits.cursor
    if kept is None or operation.name != "getMore" or not kept.seconds:
        return ""
    return FOR_CURSOR_LIFETIME if kept.ends != NEVER and limits.timeout == kept.seconds else ""


def check_max_await(limits: Limits, max_await_ms: object) -> None:
    """Raise ConfigurationError if a getMore would always time out when there are no new documents.

    A timeout from the configuration does not limit the wait for new documents.
    """
    timeout, source = limits.to_keep()
    if not isinstance(max_await_ms, int) or not timeout or source.is_configuration:
        return
    if max_await_ms >= timeout * 1000:
        expected = f"expected less than the timeout of {timeout * 1000:g} ms"
        raise ConfigurationError(
            [f"max_await_time_ms={max_await_ms}: {expected}, or every wait would time out"]
        )


def write_stage(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the $out or $merge of an aggregate, or None."""
    pipeline = args[0] if args else kwargs.get("pipeline")
    last = pipeline[-1] if isinstance(pipeline, list) and pipeline else {}
    return next((stage for stage in ("$out", "$merge") if stage in last), None)
