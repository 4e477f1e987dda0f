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

Inside of an incoming request with a deadline, an operation also ends when the request does,
whatever the table gives it. A cursor or stream keeps none of that.

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
"""That of the ends of blocks."""
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
        has_default = self._default is not None
        self._default_source = TimeoutSource.CONFIGURATION if has_default else TimeoutSource.NONE

    def set_timeout(self, call: Call, limits: Limits) -> None:
        """Set the timeout of ``call`` by the table: its length, who set it, and what activates it
        if that is ours to do; and the timeout of its attempts.

        Raises:
            InvalidOperation: pymongo's, for a timeout of its own inside of ``with_transaction``.
        """
        session = call.session
        if session is not None:
            limits.transaction = transaction_of(session)
        if limits.transaction is not None:
            if call.is_public:
                limits.transaction.refuse_others()
            limit_to(limits, limits.transaction.timeout, limits.transaction.source)
            return
        self._set_by_table(call, limits)
        if blocks.innermost() is not None and self.csot_available:
            _end_with_request(limits)

    def _set_by_table(self, call: Call, limits: Limits) -> None:
        """Do the same for an operation outside of ``with_transaction``, without regard to the
        incoming request."""
        if (self._observes or not self.csot_available) and self._is_pymongos(call, limits):
            return
        block, bound = call.block_policy, call.bound_policy
        rule = call.rule(self._rules) if self._have_timeouts else EMPTY_POLICY
        attempt_ms = block.attempt_timeout_ms or bound.attempt_timeout_ms
        attempt_ms = attempt_ms or rule.attempt_timeout_ms or self._attempt_ms
        if attempt_ms is not None:
            limits.attempt_timeout = attempt_ms / 1000
        # From the last row up to that of ``override``: the nearer replaces the farther.
        seconds, source = self._default, self._default_source
        if (of_client := call.client.options.timeout) is not None:
            seconds, source = of_client, TimeoutSource.CLIENT
        if rule.timeout_ms is not None:
            seconds, source = rule.timeout_ms / 1000, TimeoutSource.RULE
        if bound.timeout_ms is not None:
            seconds, source = bound.timeout_ms / 1000, TimeoutSource.BINDING
        if block.timeout_ms is not None:
            seconds, source = block.timeout_ms / 1000, TimeoutSource.BLOCK
        limits.own_timeout, limits.own_source = seconds, source
        has_timeout = driver.csot.active_timeout() is not None
        is_active = has_timeout or driver.csot.DEADLINE.get() != NEVER
        if is_active and _keep_active(limits, block.timeout_ms):
            return
        limits.timeout, limits.source = seconds, source
        if seconds is not None:
            # Also if it is the client's own: pymongo's loop over several batches has none.
            limits.deadline = driver.csot.ActiveTimeout(seconds, source=source)

    def _is_pymongos(self, call: Call, limits: Limits) -> bool:
        """Return True if pymongo's own timeout applies, or none: it works as without this
        library."""
        own = call.client.options.timeout
        if not self.csot_available:
            limits.timeout = own
            return True
        if call.block_policy.timeout_ms is not None:
            return False
        active = driver.csot.active_timeout()
        limits.timeout_of_pymongo = own if active is None else active
        if active is not None or driver.csot.DEADLINE.get() != NEVER:
            return True
        return call.bound_policy.timeout_ms is None and (own is not None or self._default is None)

    def timeout_for_group(
        self, client: AnyClient, target: Target, bound: Policy
    ) -> tuple[float | None, TimeoutSource, bool]:
        """Return the timeout of a GridFS stream or method, in seconds; who set it; and whether it
        is by iteration. Without the incoming request's deadline, which a stream may outlive."""
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
        in_progress.clear_inherited()
        call = Call(
            client, "", target, is_public=False, block_policy=blocks.current(), bound_policy=bound
        )
        limits = Limits()
        self.set_timeout(call, limits)
        return call, limits

    def mode_of(self, call: Call) -> str | None:
        """Return the ``timeout_mode`` of the first policy that has one: of a block, of what the
        cursor is made from, of a rule."""
        mode: str | None = call.option(self._rules, "timeout_mode")
        return mode


def _keep_active(limits: Limits, block_ms: int | None) -> bool:
    """Return True if an operation keeps the active timeout, because no block of ``override``
    around the operation has a shorter one."""
    if block_ms:
        active = driver.csot.active_timeout()
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
    """Give an operation this timeout, which is active while pymongo runs. Without a ``source``,
    whoever set its timeout before has set this one, too."""
    if limits.without_request is not None:
        _, limits.source = limits.without_request
        limits.without_request = None
    if source is not None:
        limits.source = source
    limits.timeout, limits.deadline = timeout.seconds, timeout.resume(limits.source)
    if blocks.innermost() is not None:
        _end_with_request(limits)


def _end_with_request(limits: Limits) -> None:
    """Have the operation end when the incoming request does, unless it ends earlier anyway."""
    expires_at = blocks.expires_at()
    if expires_at is None:
        return
    # Tests may replace one of the two clocks: only differences are compared.
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
    # Even if the request is over: the driver then raises its error before it sends anything.
    limits.timeout = max(request_ends - now, SHORTEST)
    limits.deadline = driver.csot.ActiveTimeout(limits.timeout, request_ends, limits.source)


def refresh(limits: Limits) -> None:
    """Give an operation the whole of its timeout from now on, whatever has passed of it."""
    timeout, _ = limits.to_keep()
    if timeout is not None:
        limit_to(limits, driver.csot.Timeout.from_now(timeout))


def leave_at_least(limits: Limits, seconds: float) -> None:
    """Give an operation what is left of its timeout, or so many seconds if that is less."""
    timeout, _ = limits.to_keep()
    if not timeout:
        return
    least, left = min(seconds, timeout), driver.csot.remaining()
    if left is not None and left < least:
        limit_to(limits, driver.csot.Timeout.from_now(least))


class TransactionDeadline(NamedTuple):
    """The one deadline of a with_transaction, for the operations with its session."""

    timeout: driver.csot.Timeout
    timed: Block | None
    """The ``override`` with a timeout around with_transaction."""
    began: float
    """In seconds on the driver's clock."""
    source: TimeoutSource = TimeoutSource.NONE
    """Who set the timeout."""

    def refuse_others(self) -> None:
        """Raises InvalidOperation where the callback gives an operation a timeout of its own."""
        timed = blocks.timed()
        inside = timed is not None and timed is not self.timed
        # What an operation puts in force, for those inside of it as well, is none of the
        # callback's.
        if not inside and in_progress.current() is None:
            inside = driver.csot.active_timeout() is not None and not driver.csot.is_ours()
        if inside:
            raise InvalidOperation(
                "inside of with_transaction an operation with its session has what remains of the "
                "transaction's timeout, and none of its own: put the override() or "
                "pymongo.timeout() around with_transaction"
            )


def enter_transaction(session: Session, deadline: TransactionDeadline) -> None:
    """The session is in the callback from now on."""
    setattr(session, _TRANSACTION, deadline)


def leave_transaction(session: Session) -> None:
    vars(session).pop(_TRANSACTION, None)


def transaction_of(session: Session | None) -> TransactionDeadline | None:
    """The deadline of the with_transaction in whose callback a session is."""
    return getattr(session, _TRANSACTION, None)


ATTRIBUTE = "_pymongo_resilience_timeout"
DEFAULT_WAIT = 1.0
"""Seconds that the server waits for news where no ``max_await_time_ms`` is set."""
FOR_CURSOR_LIFETIME = (
    ' for the whole life of the cursor (timeout_mode="iteration" gives each batch its own)'
)

FOR_REQUEST = ", which is what the incoming request had left,"
FOR_RESUME = " to resume (the next call of next() tries again where this one was)"


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
    source: TimeoutSource = TimeoutSource.NONE
    """Who set the timeout."""
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
        in_force = driver.csot.active_timeout()
        if not seconds and (in_force is not None or driver.csot.hidden_timeout() is not None):
            return None
        seconds = shorter(seconds, in_force or 0)
        if seconds == in_force and self.ends == NEVER:
            return None
        return driver.csot.Timeout.begin(seconds).until(self.ends)


def kept_by(cursor: Cursor | ChangeStream) -> CursorTimeout | None:
    return getattr(cursor, ATTRIBUTE, None)


def keep(cursor: Cursor | ChangeStream, timeout: CursorTimeout | None) -> None:
    if timeout is not kept_by(cursor):
        setattr(cursor, ATTRIBUTE, timeout)


def cursor_timeout(
    rules: TimeoutRules,
    call: Call,
    limits: Limits,
    cursor: Cursor | None = None,
    writes: str | None = None,
) -> CursorTimeout | None:
    """Return what the cursor that ``call`` makes keeps; None without a timeout, or with all of a
    transaction's.

    Raises ConfigurationError for a mode without a timeout, for a tailable cursor with a lifetime,
    for an aggregate by iteration that ``writes`` ($out or $merge), and for a server that would wait
    longer than the operation has. The mode of the process is a default, and no error where it
    cannot hold.
    """
    mode, tailable = rules.mode_of(call), driver.cursors.is_tailable(cursor)
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    timeout, source = limits.to_keep()
    if mode is not None and timeout is None:
        raise ConfigurationError([f"timeout_mode={mode}: expected a timeout_ms beside it"])
    if mode == CURSOR_LIFETIME and tailable:
        raise ConfigurationError([f"timeout_mode={mode}: expected iteration for a tailable cursor"])
    if mode == ITERATION and writes:
        expected = f"expected cursor_lifetime for an aggregate with {writes}"
        raise ConfigurationError([f"timeout_mode={mode}: {expected}"])
    check_max_await(limits, max_await_ms)
    if timeout is None or limits.transaction is not None:
        return None
    # A method or a stream of GridFS has one deadline, and its cursors are within it.
    within_another = driver.csot.is_ours()
    if tailable:
        mode = ITERATION
    elif within_another or writes:
        mode = CURSOR_LIFETIME
    blocked = driver.csot.active_timeout() is not None and not blocks.current().timeout_ms
    default = ITERATION if source.is_configuration else CURSOR_LIFETIME
    waits = source.is_configuration and driver.cursors.awaits_data(cursor)
    return CursorTimeout(
        seconds=None if blocked or within_another else limits.own_timeout,
        mode=mode or rules.timeout_mode or default,
        began=driver.csot.now(),
        to_close=timeout,
        wait=wait_for_news(cursor) if waits else 0.0,
        source=source,
    )


def limit_cursor(
    rules: TimeoutRules,
    call: Call,
    limits: Limits,
    cursor: Cursor | None = None,
    writes: str | None = None,
) -> None:
    """Give an operation that makes a cursor the timeout which the cursor keeps; arguments and
    errors are those of ``cursor_timeout``."""
    limits.cursor = cursor_timeout(rules, call, limits, cursor, writes)


def limit_batch(limits: Limits, kept: CursorTimeout | None) -> None:
    """Give an operation that fetches a batch the timeout that its cursor has kept."""
    limits.cursor = kept
    if kept is None:
        return
    kept.in_use = True
    timeout = kept.for_a_batch()
    if timeout is not None:
        # A block around the batch is the application's, and so is what it gave the cursor.
        limit_to(limits, timeout, None if kept.source.is_configuration else kept.source)


def limit_resume(limits: Limits, kept: CursorTimeout | None, least: float) -> None:
    """Give an operation that resumes a change stream at least so many seconds, if the configuration
    set its timeout: that ends no stream, and plain pymongo waits for a server that long."""
    limits.stream = kept
    timeout, source = limits.to_keep()
    if source.is_configuration and timeout and timeout < least:
        limit_to(limits, driver.csot.Timeout.begin(least))


def wait_for_news(cursor: Cursor | None) -> float:
    """Seconds that the server waits for a getMore's first document, where it awaits data."""
    max_await_ms = driver.cursors.max_await_time_ms(cursor)
    return max_await_ms / 1000 if max_await_ms else DEFAULT_WAIT


def advice(operation: Operation) -> str:
    """What to know about the timeout of a batch that is not the batch's own, and of a resume; ""
    for any other."""
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
    """Raises ConfigurationError where a getMore that finds nothing could not but time out, unless
    the timeout is the configuration's, which leaves the wait for news alone."""
    timeout, source = limits.to_keep()
    if not isinstance(max_await_ms, int) or not timeout or source.is_configuration:
        return
    if max_await_ms >= timeout * 1000:
        expected = f"expected less than the timeout of {timeout * 1000:g} ms"
        raise ConfigurationError([f"max_await_time_ms={max_await_ms}: {expected}"])


def write_stage(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The $out or $merge of an aggregate."""
    pipeline = args[0] if args else kwargs.get("pipeline")
    last = pipeline[-1] if isinstance(pipeline, list) and pipeline else {}
    return next((stage for stage in ("$out", "$merge") if stage in last), None)
