"""Who says how long an operation may take: here, and nowhere else.

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

Source: Client Side Operations Timeout, "timeoutMS" and "Convenient Transactions API".
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

from pymongo.errors import InvalidOperation

from pymongo_resilience.config import Config
from pymongo_resilience.option_types import CURSOR_LIFETIME
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import Block
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.policies.policy import NOTHING, Policy, shorter
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NEVER, NO_DEADLINE, Call
from pymongo_resilience_instrumentation.operations import Target

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

    def of_call(self, call: Call) -> tuple[float | None, AbstractContextManager[None]]:
        """The seconds that a call has, and what puts them in force where that is ours to do. Sets
        ``configured`` and ``own_timeout``. Raises InvalidOperation for one of its own inside of
        with_transaction."""
        if call.transaction is not None:
            if call.public:
                call.transaction.refuse_others()
            return call.transaction.timeout.seconds, call.transaction.timeout.resume()
        if not self.csot_available:
            return call.client.options.timeout, NO_DEADLINE
        around, in_force = call.within, driver.csot.TIMEOUT.get()
        by_rule = NOTHING
        if self._have_timeouts:
            by_rule = call.rule(self._rules)
        own, bound = around.attempt_timeout_ms, call.bound.attempt_timeout_ms
        attempt_ms = own or bound or by_rule.attempt_timeout_ms or self._attempt_ms
        if attempt_ms is not None:
            call.attempt_timeout = attempt_ms / 1000
        milliseconds = around.timeout_ms
        if milliseconds is None:
            milliseconds = call.bound.timeout_ms
        configured = milliseconds is None and by_rule.timeout_ms is not None
        if configured:
            milliseconds = by_rule.timeout_ms
        if milliseconds is None:
            seconds: float | None = call.client.options.timeout
            if seconds is None and self._default is not None:
                seconds, configured = self._default, True
        else:
            seconds = milliseconds / 1000
        call.own_timeout = seconds, configured
        if in_force is not None or driver.csot.DEADLINE.get() != NEVER:
            return self._within_another(around.timeout_ms, in_force)
        call.configured = configured
        # Also where it is the client's own: pymongo's loop over several batches has none.
        return seconds, NO_DEADLINE if seconds is None else driver.csot.InForce(seconds)

    def _within_another(
        self, own: int | None, in_force: float | None
    ) -> tuple[float | None, AbstractContextManager[None]]:
        """``own``: milliseconds that blocks give, inside of a ``pymongo.timeout``."""
        hidden = None if in_force else driver.csot.hidden_timeout()
        if hidden is not None and not own:
            return hidden.seconds, hidden.resume()
        if in_force is not None and (not own or shorter(in_force, own / 1000) == in_force):
            return in_force, NO_DEADLINE
        seconds = None if own is None else own / 1000
        # pymongo keeps the earlier of both ends.
        return seconds, NO_DEADLINE if seconds is None else driver.csot.InForce(seconds)

    def of_several(
        self, client: object, target: Target, bound: Policy
    ) -> tuple[float | None, bool]:
        """The seconds that several calls have together, a with_transaction's or those of a stream
        of GridFS; and whether they are by iteration."""
        if calls.reporting():
            return None, False
        calls.clear_inherited()
        call = Call(client, "", target)
        call.public = False
        call.bound = bound
        seconds = self.of_call(call)[0] if self.csot_available else None
        mode = call.rule(self._rules).timeout_mode
        return seconds, call.configured and (mode or self.timeout_mode) != CURSOR_LIFETIME

    def mode_of(self, call: Call) -> str | None:
        """What policies say: of a block, of what the cursor is made from, of a rule."""
        mode = call.within.timeout_mode or call.bound.timeout_mode
        return mode or call.rule(self._rules).timeout_mode


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
        # What a call puts in force, for those inside of it as well, is none of the callback's.
        if not inside and calls.current() is None:
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
