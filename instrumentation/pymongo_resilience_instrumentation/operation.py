"""What the application called: the facts, what is in force for it, and what has happened to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from typing import Any, TypeVar

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import Span
from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.synchronous.cursor import Cursor

from pymongo_resilience.closing import keep_variables
from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.namespaces import NamespaceRules
from pymongo_resilience.policies.policy import NOTHING, Policy
from pymongo_resilience.rules.failure import RetryReason
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.timeline import Run
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text, namespace_text
from pymongo_resilience_instrumentation.public_operations import ABORT, COMMIT, WRITES, Target

T = TypeVar("T")
NEVER = float("inf")
NO_DEADLINE: AbstractContextManager[None] = nullcontext()
PAST_DEADLINE: AbstractContextManager[None] = nullcontext()
"""The deadline of ours of an operation that has ended: a task that inherited it must drop it."""


class History:
    """What has happened to an operation, for its error and its telemetry. Each try of a hedged read
    has its own; the read has that of the try which ends it."""

    withholds = False
    """A command with credentials was sent: no text of an error may leave."""
    has_command_spans = False
    """Each of its commands has a span; see the option ``command_spans``."""
    runs: Sequence[Run] = ()
    """Attempts that have failed, for its timeline."""
    backoff = 0.0
    declined_by: Rule | None = None
    only_command: Any = None
    """A SentCommand (telemetry/): the one that the operation's own span may show."""
    waits: list[Any] | None = None
    """Each a Wait (timeouts/) for a server or a connection."""
    loop: Any = None
    """The last RetryLoop (retries/)."""
    server: Address | None = None
    """The address that the last command was sent to, where that is known without a loop."""
    reasons: Sequence[RetryReason] = ()
    """One for each retry."""
    final_error: Exception | None = None
    """What the rules let through as it is: if it is a timeout, then not the deadline's."""

    @property
    def attempts(self) -> int:
        return 1 + len(self.reasons)

    @property
    def selected(self) -> Any:
        """The driver's server that the last loop selected; None without one."""
        return None if self.loop is None else self.loop.server

    @property
    def address(self) -> Address | None:
        """The server that the last loop selected, or that the last command was sent to."""
        server = self.selected
        return self.server if server is None else driver.selection.address(server)

    def server_text(self) -> str | None:
        """``"host:port"``."""
        return None if (address := self.address) is None else address_text(address)


LEFT = History()
"""That of operations which are over: nothing is written to it."""


class Operation:
    """Belongs to one thread or task. The outermost wrapper makes it; inner ones find it.

    Plain facts. What is the state of a folder above is Any; the docstring names class and folder.

    What not every operation sets is an attribute of the class until it does.
    """

    has_operations = True
    """The driver calls its own public operations inside; where it does not, an application's
    listener does, and those are operations of their own."""

    reporting = False
    """It is being published, or its end was: see ``reported``."""
    unknown_concern = False
    bound: Policy = NOTHING
    """The policy that the collection, database or session carries."""
    instance: Any = None
    """What a method of the public API was called on."""
    session: Any = None
    """The session that it was called with, or that is bound around it."""
    plain = False
    """No policy holds for it."""
    attempt_timeout: float | None = None
    """Seconds that what was sent may stay unanswered."""
    application_limit_ms: int | None = None
    """The application's own ``maxTimeMS``, if the last command carried it: nothing that the library
    sets was shorter."""
    attempt_limits_server = False
    """The last command carried what its attempt may take as its ``maxTimeMS``."""
    limit_ms: int | None = None
    """The ``maxTimeMS`` of the last command."""
    reply_within: float | None = None
    """The same, of the command that is being sent. A later batch of a cursor may wait for news."""
    cursor: Any = None
    """A CursorTimeout (timeouts/), where this operation makes a cursor or fetches a batch."""
    stream: Any = None
    """The same of a change stream, where this operation resumes one."""
    transaction: Any = None
    """A TransactionDeadline (timeouts/): its with_transaction's, inside of whose callback it is."""
    own_timeout: tuple[float | None, bool] = None, False
    """The seconds that it had without a ``pymongo.timeout`` around it; and whether the library's
    configuration gives them, and not the application."""
    configured = False
    """The timeout comes from the library's configuration, a rule or the default, and not from the
    application: it bounds commands, and ends no cursor, change stream or stream of GridFS; the
    application's older options keep their effect."""
    read_only: Any = None
    """A ReadOnly (retries/), until the first loop that it runs begins."""
    batch_of: type | None = None
    """The class of the cursor that a later batch is fetched for."""
    handshaking: Any = None
    """The driver's connection that its attempt is making, from the first hello on."""
    interruption: Exception | None = None
    """What a signal handler has raised in a listener of ours: raised once the operation ends."""
    is_cleanup = False
    """It ends a cursor, a session or a transaction that is left."""
    public = True
    """False without a wrapper around the driver's loop: no telemetry."""
    ended = False
    ended_ns: int | None = None
    """Since the epoch, where its end is published later; None is now."""
    started = 0.0
    seconds = 0.0
    """How long it took."""
    timeout: float | None = None
    """Seconds the whole operation has; 0 disables the timeout, None is no deadline."""
    pymongos_timeout: float | None = None
    """Seconds of a timeout that this library only shows: pymongo alone keeps it."""
    deadline = NO_DEADLINE
    """Puts the timeout in force, where that is ours to do."""
    span: Span | None = None
    ends: Any = None
    """A TransactionSpan (telemetry/), of the transaction which this commit or abort ends."""
    terminal_detector: Any = None
    """A TerminalDetector (selection/), of the selection in progress."""
    token: Token[Operation | None] | None = None
    outer_context: Context | None = None
    """OpenTelemetry's context around the operation."""

    def __init__(self, client: Any, name: str, target: Target, public_method: str = "") -> None:
        self.client = client
        self.name = name
        self.target = target
        self.public_method = public_method
        """The driver's, by which the application began it; empty for none."""
        self.reads_inside = name not in WRITES
        """The driver fetches batches for it, as it does for all but writes: they are no operations
        of their own."""
        self.within = NOTHING if blocks.innermost() is None else blocks.current()
        """The policy of the blocks around it."""
        self.history = History()
        self.command_spans: dict[int, Any] = {}
        """Each a SentCommand (telemetry/) in flight, by request id."""

    def __str__(self) -> str:
        return self.name

    @property
    def method(self) -> str:
        """The driver's method that was called, with ``getMore`` of a batch; empty for none."""
        if self.batch_of is None:
            return self.public_method
        # Of any other cursor it is not known which command it is from.
        return "find/getMore" if issubclass(self.batch_of, (Cursor, AsyncCursor)) else "getMore"

    def policy(self, rules: NamespaceRules) -> Policy:
        """That of enclosing blocks, over the object's, over the rules of its namespace."""
        return NOTHING if self.plain else self.within.over(self.bound).over(self.rule(rules))

    def wanted(self, rules: NamespaceRules, option: str) -> Any:
        """The same of one option, without making a policy; None where none has it."""
        for policy in (self.within, self.bound, self.rule(rules) if rules.any else NOTHING):
            value = getattr(policy, option)
            if value is not None:
                return value
        return None

    def rule(self, rules: NamespaceRules) -> Policy:
        """What rules say on its namespace; a client's bulk write goes to many, and ``admin`` is
        none of them."""
        if self.name == "bulkWrite" and self.target[1] is None:
            return rules.policy_of("", None)
        return rules.policy_of(*self.target)

    @property
    def namespace(self) -> str:
        """Empty where it is unknown: of a method that was bound before ``instrument()``."""
        return "admin" if self.name in {COMMIT, ABORT} else namespace_text(*self.target)

    @property
    def acknowledged(self) -> bool:
        """False where the write concern asks for no answer, or is unknown."""
        if self.unknown_concern:
            return False
        concern = getattr(self.instance, "write_concern", None)
        return concern is None or bool(concern.acknowledged)

    def is_closed_by(self, error: BaseException) -> bool:
        """Return True if its coroutine is being closed, before it has finished.

        The garbage collector may do that anywhere, also while the thread holds a lock: no foreign
        code may be called then. pymongo's cleanup may have replaced the GeneratorExit by another
        error, but in the context of the collector's thread the operation is not in progress.
        """
        return isinstance(error, GeneratorExit) or CURRENT.get() is not self

    def limit_to(self, timeout: driver.csot.Timeout) -> None:
        """It has this timeout, which is put in force while the driver runs."""
        self.timeout, self.deadline = timeout.seconds, timeout.resume()

    def elapsed(self) -> float:
        """Seconds since it was entered."""
        return time.perf_counter() - self.started

    @property
    def outer(self) -> Operation | None:
        """The operation that this one began inside of, one that has ended included."""
        before = None if self.token is None else self.token.old_value
        return before if isinstance(before, Operation) else None

    def _restore(self) -> None:
        """Put back what was there before, if the current context still holds this operation.

        It does not if its coroutine is closed from another context: then nothing is to be restored.
        """
        if CURRENT.get() is not self:
            return
        deadline = self.deadline
        if isinstance(deadline, driver.csot.InForce) and deadline.before is not None:
            deadline.__exit__(None, None, None)
        if self.outer_context is not None:
            # Not by detaching, which takes any exception for its own fault.
            context.attach(self.outer_context)
        if self.token is not None:
            CURRENT.reset(self.token)

    def leave(self) -> None:
        """The caller's own span is the current one again.

        Where an exception of a signal handler strikes half-way, it may be called once more: so what
        is in force ends first, and the operation is forgotten last.
        """
        self.ended = True
        self._restore()
        if self.deadline is not NO_DEADLINE:
            # A context that outlives the operation, a connection's or a task's, keeps it.
            self.deadline = PAST_DEADLINE
        self.history = LEFT
        self.interruption = self.terminal_detector = None
        self.command_spans.clear()
        self.client = self.instance = self.session = None

    def leave_unfinished(self) -> None:
        """Leave it because its coroutine is closed; what it has to report is kept: see
        ``deferred``. An operation that begins later in its own context finds it among what is
        inherited."""
        self.ended = True
        if CURRENT.get() is self:
            keep_variables()
            self._restore()
        self.client = self.instance = self.session = None
        self.history.loop = self.history.final_error = self.terminal_detector = None
        self.token = None


CURRENT: ContextVar[Operation | None] = ContextVar("pymongo_resilience_operation", default=None)
"""See ``in_progress``."""
