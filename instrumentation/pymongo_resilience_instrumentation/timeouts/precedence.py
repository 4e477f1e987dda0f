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

Source: Client Side Operations Timeout, "timeoutMS".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymongo_resilience.option_types import CURSOR_LIFETIME
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.policy import NOTHING, shorter
from pymongo_resilience_instrumentation import calls, driver
from pymongo_resilience_instrumentation.calls import NEVER, NO_DEADLINE, Call

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pymongo_resilience.config import Config
    from pymongo_resilience.policies.namespaces import NamespaceRules
    from pymongo_resilience.policies.policy import Policy
    from pymongo_resilience_instrumentation.operations.public_operations import Target


class TimeoutRules:
    """Immutable, so thread- and task-safe."""

    def __init__(self, rules: NamespaceRules, config: Config, *, csot_available: bool) -> None:
        self.csot_available = csot_available
        """Whether the driver's timeout in force can be read (CSOT); without it we set none."""
        self.timeout_mode = config.timeout_mode
        """That of the process, for cursors."""
        self._rules = rules
        self._have_timeouts = rules.have_timeouts
        self._attempt_ms = config.attempt_timeout_ms
        self._default = None if config.timeout_ms is None else config.timeout_ms / 1000

    def of_call(self, call: Call) -> tuple[float | None, AbstractContextManager[None]]:
        """The seconds that a call has, and what puts them in force where that is ours to do.

        Sets ``call.configured``. Raises InvalidOperation (pymongo's) for a timeout of its own
        inside of with_transaction.
        """
        if call.transaction is not None:
            if call.public:
                call.transaction.refuse_others()
            return call.transaction.timeout.seconds, call.transaction.timeout.resume()
        if not self.csot_available:
            return call.client.options.timeout, NO_DEADLINE
        around, in_force = blocks.current(), driver.csot.TIMEOUT.get()
        by_rule = NOTHING
        if self._have_timeouts:
            by_rule = self._rules.policy_of(call.database, call.collection)
        if around is not NOTHING:
            call.within = around
        own, bound = around.attempt_timeout_ms, call.bound.attempt_timeout_ms
        attempt_ms = own or bound or by_rule.attempt_timeout_ms or self._attempt_ms
        if attempt_ms is not None:
            call.attempt_timeout = attempt_ms / 1000
        if in_force is not None or driver.csot.DEADLINE.get() != NEVER:
            return self._within_another(around.timeout_ms, in_force)
        seconds, call.configured = self._on_its_own(call, around, by_rule)
        # Also where it is the client's own: pymongo's loop over several batches has none.
        return seconds, NO_DEADLINE if seconds is None else driver.csot.timeout(seconds)

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
        return seconds, NO_DEADLINE if seconds is None else driver.csot.timeout(seconds)

    def without_blocks(self, call: Call) -> tuple[float | None, bool]:
        """The seconds that ``of_call`` would give, were there no ``pymongo.timeout`` around it.

        And whether the library's configuration gives them, a rule or the default, and not the
        application.
        """
        by_rule = self._rules.policy_of(call.database, call.collection)
        return self._on_its_own(call, blocks.current(), by_rule)

    def _on_its_own(self, call: Call, around: Policy, by_rule: Policy) -> tuple[float | None, bool]:
        own = around.timeout_ms
        if own is None:
            own = call.bound.timeout_ms
        if own is not None:
            return own / 1000, False
        if by_rule.timeout_ms is not None:
            return by_rule.timeout_ms / 1000, True
        of_client: float | None = call.client.options.timeout
        if of_client is not None or self._default is None:
            return of_client, False
        return self._default, True

    def of_several(
        self, client: object, target: Target, bound: Policy
    ) -> tuple[float | None, bool]:
        """The seconds that several calls have together, a with_transaction's or those of a stream
        of GridFS; None is no timeout.

        And whether they are by iteration: the library's configuration gives them, and does not ask
        for a life.
        """
        if calls.reporting():
            return None, False
        calls.clear_inherited()
        call = Call(client, "", target)
        call.public = False
        call.bound = bound
        seconds = self.of_call(call)[0] if self.csot_available else None
        mode = self._rules.policy_of(call.database, call.collection).timeout_mode
        return seconds, call.configured and (mode or self.timeout_mode) != CURSOR_LIFETIME

    def mode_of(self, call: Call) -> str | None:
        """What policies say: of a block, of what the cursor is made from, of a rule."""
        mode = blocks.current().timeout_mode or call.bound.timeout_mode
        return mode or self._rules.policy_of(call.database, call.collection).timeout_mode
