"""One operation: what was called, how long it may take, what happened so far, and what is active
while it runs.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from operator import attrgetter
from typing import TYPE_CHECKING

from opentelemetry import context
from opentelemetry.context import Context

from pymongo_resilience.closing import keep_variables
from pymongo_resilience.policies.policy import EMPTY_POLICY
from pymongo_resilience.rules.outcome import Outcome
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.addresses import Address, address_text
from pymongo_resilience_instrumentation.call import ENDED, Call
from pymongo_resilience_instrumentation.limits import NO_DEADLINE, PAST_DEADLINE, Limits
from pymongo_resilience_instrumentation.public_operations import WRITES

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from pymongo.monitoring import CommandStartedEvent

    from pymongo_resilience.policies.namespaces import NamespaceRules
    from pymongo_resilience.policies.policy import Policy
    from pymongo_resilience_instrumentation.call import AnyClient, AnySession
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.protocols import Connection, Server
    from pymongo_resilience_instrumentation.retries.loop_hooks import LoopHooks
    from pymongo_resilience_instrumentation.selection.fast_fail import TerminalDetector
    from pymongo_resilience_instrumentation.telemetry.span_state import SpanState
    from pymongo_resilience_instrumentation.telemetry.transaction_spans import TransactionSpan


class Operation:
    """One operation. Belongs to one thread or task.

    The outermost wrapper creates it, and inner ones find it. While it runs, ``timeouts/`` writes
    ``limits``, the executor writes ``outcome``, and ``telemetry/`` writes ``shown``, ``sent_to``,
    ``last_command``, and ``outer_context``. The runtime begins and ends it, and ``begin_run`` sets
    ``attempts``. The methods of this class write everything else, and replace these values when it
    begins, adopts a try of a hedged read, or ends. Attributes that most operations never set are
    class attributes, so that creating an operation is cheap.
    """

    has_operations = True
    """pymongo calls its own public operations inside. If False, only an application's listener
    does, and those are separate operations.
    """
    shown: SpanState | None = None
    """The state of its span; None without a span."""
    transaction_span: TransactionSpan | None = None
    """The span of the transaction that this commit or abort ends."""
    hooks: LoopHooks | None = None
    """Hooks for the first loop, until it begins."""
    attempts: DriverAttempts | None = None
    """The attempts of the most recent loop."""
    sent_to: Address | None = None
    """The server that the last command was sent to, if known without a loop."""
    last_command: CommandStartedEvent | None = None
    """The last command that was sent, if its shape may be shown."""
    terminal_detector: TerminalDetector | None = None
    """State of the server selection in progress."""
    handshaking: Connection | None = None
    """The connection that its attempt is creating, from the first hello on."""
    interruption: Exception | None = None
    """An exception that a signal handler raised while a listener ran. pymongo drops it there, so it
    is raised again at the end of the operation.
    """
    in_foreign_call = False
    """True while foreign code is called for the operation: see ``in_progress.call_foreign``."""
    ended = False
    ended_ns: int | None = None
    """Nanoseconds since the epoch, if its end is published later; None means now."""
    seconds = 0.0
    """Its duration, once it has ended."""
    has_policy = True
    """True if a policy may apply to it."""
    token: Token[Operation | None] | None = None
    outer_context: Context | None = None
    """OpenTelemetry's context around the operation, if the operation has replaced it."""

    def __init__(
        self,
        call: Call,
        limits: Limits | None = None,
        hooks: LoopHooks | None = None,
        transaction_span: TransactionSpan | None = None,
    ) -> None:
        self.started = time.perf_counter()
        """Seconds on the clock of ``time.perf_counter``."""
        self.call = call
        self.limits = Limits() if limits is None else limits
        self.outcome = Outcome()
        self.reads_inside = call.name not in WRITES
        """True if pymongo fetches batches as part of it, as for everything except writes."""
        if hooks is not None:
            self.hooks = hooks
        if transaction_span is not None:
            self.transaction_span = transaction_span

    def __str__(self) -> str:
        return self.call.name

    # These are read often. A property written in Python would cost a call each time.
    if TYPE_CHECKING:
        client: AnyClient
        name: str
        deadline: AbstractContextManager[None]
        """Active while pymongo runs."""
    else:
        client = property(attrgetter("call.client"))
        name = property(attrgetter("call.name"))
        deadline = property(attrgetter("limits.deadline"))

    @property
    def namespace(self) -> str:
        return self.call.namespace

    @property
    def session(self) -> AnySession | None:
        return self.call.session

    @property
    def span(self) -> Span | None:
        return None if self.shown is None else self.shown.span

    def policy(self, rules: NamespaceRules) -> Policy:
        """Return the merged policy; see ``Call.policy``."""
        return self.call.policy(rules) if self.has_policy else EMPTY_POLICY

    # The server of its last attempt.

    @property
    def selected(self) -> Server | None:
        """pymongo's object for the server that the last loop selected, or None."""
        return None if self.attempts is None else self.attempts.server

    @property
    def address(self) -> Address | None:
        """The server that the last loop selected, or that the last command was sent to."""
        server = None if self.attempts is None else self.attempts.server
        return self.sent_to if server is None else driver.selection.address(server)

    def server_text(self) -> str | None:
        """Return ``"host:port"``."""
        return None if (address := self.address) is None else address_text(address)

    def note_server(self, address: Address | None) -> None:
        """Record the server that a command is sent to."""
        self.sent_to = address

    # While it runs.

    def activate(self) -> None:
        """Make it the current operation.

        For public operations, the runtime does the same without this call, which every healthy
        operation would pay for.
        """
        self.token = CURRENT.set(self)

    def leave_context(self) -> None:
        """Leave OpenTelemetry's current context until the operation ends, so that its span is not
        the parent of what follows.
        """
        self.outer_context = context.get_current()
        context.attach(Context())

    def elapsed(self) -> float:
        """Return the seconds since it began."""
        return time.perf_counter() - self.started

    def hook_first_loop(self, hooks: LoopHooks) -> None:
        """Set the hooks for the first loop."""
        self.hooks = hooks

    def take_hooks(self) -> LoopHooks | None:
        """Return the hooks for the first loop, once."""
        hooks, self.hooks = self.hooks, None
        return hooks

    def note_handshake(self, connection: Connection | None) -> None:
        """Record the connection that its attempt is creating; None when that is over."""
        self.handshaking = connection

    def begin_attempt(self) -> None:
        """Reset the state of the previous attempt."""
        self.terminal_detector = None

    def detect_terminal(self, detector: TerminalDetector) -> None:
        """Keep ``detector`` until the attempt is over."""
        self.terminal_detector = detector

    def interrupt(self, error: Exception) -> None:
        """Raise ``error`` at the end, which a signal handler raised while a listener ran."""
        self.interruption = error

    def another_try(self, hooks: LoopHooks) -> Operation:
        """Return an operation that makes the same call beside this one, with its own outcome."""
        tried = Operation(self.call, self.limits.for_another_try(), hooks)
        tried.started, tried.has_policy = self.started, self.has_policy
        if self.shown is not None:
            tried.shown = self.shown.for_another_try()
        return tried

    def leave_try(self) -> None:
        """Leave an operation created by ``another_try``. Its outcome can still be read."""
        self.ended, self.call, self.hooks = True, ENDED, None

    def adopt(self, tried: Operation) -> None:
        """Take over the outcome of a try."""
        self.outcome, self.limits.waits = tried.outcome, tried.limits.waits
        # The operation continues with the server and the span state of the winning try.
        self.attempts, self.sent_to, self.shown = tried.attempts, tried.sent_to, tried.shown
        self.last_command = tried.last_command

    def forget_outcome(self) -> None:
        """Break the reference cycles through the last loop and the final error, whose traceback
        references the operation.
        """
        self.attempts, self.outcome = None, ENDED_OUTCOME

    @property
    def outer(self) -> Operation | None:
        """The operation inside of which this one began, even if that has ended."""
        before = None if self.token is None else self.token.old_value
        return before if isinstance(before, Operation) else None

    def is_closed_by(self, error: BaseException) -> bool:
        """Return True if its coroutine is being closed before it has finished.

        The garbage collector may do that anywhere, even while the thread holds a lock, so no
        foreign code may be called then. pymongo's cleanup may have replaced the GeneratorExit by
        another error. In that case, the current context shows it: it is that of the thread in which
        the garbage collector runs, so this is not the current operation.
        """
        return isinstance(error, GeneratorExit) or CURRENT.get() is not self

    # Its end.

    def abandon(self) -> None:
        """Mark it as ended after an internal error prevented its normal end."""
        self.ended = True

    def _restore(self) -> None:
        """Restore what was active before, if this is the operation of the current context.

        It is not if its coroutine is closed from another context; then there is nothing to restore.
        """
        if CURRENT.get() is not self:
            return
        deadline = self.limits.deadline
        if isinstance(deadline, driver.csot.ActiveTimeout) and deadline.before is not None:
            deadline.__exit__(None, None, None)
        if self.outer_context is not None:
            # Do not detach the token: OpenTelemetry's detach logs an error if anything raises in
            # it, even a signal handler.
            context.attach(self.outer_context)
        if self.token is not None:
            CURRENT.reset(self.token)

    def leave(self) -> None:
        """Leave the operation, so that the caller's own span and timeout are active again."""
        # A signal handler may raise halfway, and this is then called again. So end what is active
        # first, and drop the references to the operation last.
        self.ended = True
        self._restore()
        # A context that outlives the operation, such as that of a task or a connection, keeps this
        # object alive. Drop everything that it references.
        limits = self.limits
        if limits.deadline is not NO_DEADLINE:
            limits.deadline = PAST_DEADLINE
        if limits.waits is not None:
            limits.waits = None
        self.outcome, self.call, self.attempts = ENDED_OUTCOME, ENDED, None
        if self.last_command is not None:
            self.last_command = None
        if self.hooks is not None or self.interruption is not None:
            self.hooks = self.interruption = None
        if self.terminal_detector is not None:
            self.terminal_detector = None
        # A task that was started inside and continues is treated like any other.
        self.in_foreign_call = False

    def leave_unfinished(self) -> None:
        """Leave it because its coroutine is being closed. Telemetry is deferred: see ``deferred``.

        Contexts that still contain the operation drop it with ``in_progress.clear_inherited``.
        """
        self.ended = True
        self.seconds, self.ended_ns = self.elapsed(), time.time_ns()
        if CURRENT.get() is self:
            keep_variables()
            self._restore()
        self.call = self.call.without_client()
        # The error's traceback would keep the coroutine's variables alive.
        self.outcome.final_error = None
        self.attempts = self.hooks = self.terminal_detector = self.last_command = None
        self.token = None

    def detach(self) -> None:
        """Detach it in a forked child, because the parent ends and counts it."""
        self.ended, self.reads_inside = True, False
        self.call = self.call._replace(is_public=False)
        self.shown = None


ENDED_OUTCOME = Outcome()
"""The outcome of all operations that have ended. Never written to."""

CURRENT: ContextVar[Operation | None] = ContextVar("pymongo_resilience_operation", default=None)
"""The current operation; see ``in_progress``."""
