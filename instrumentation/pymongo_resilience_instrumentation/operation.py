"""One operation: what the application called, how long it may take, what happened to it, and what
is active while it runs."""

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

    from pymongo_resilience.policies.namespaces import NamespaceRules
    from pymongo_resilience.policies.policy import Policy
    from pymongo_resilience_instrumentation.call import AnyClient, AnySession
    from pymongo_resilience_instrumentation.driver.protocols import Connection, Server
    from pymongo_resilience_instrumentation.retries.retry_loop import LoopHooks, RetryLoop
    from pymongo_resilience_instrumentation.selection.fast_fail import TerminalDetector
    from pymongo_resilience_instrumentation.telemetry.span_state import SpanState
    from pymongo_resilience_instrumentation.telemetry.transaction_spans import TransactionSpan


class Operation:
    """Belongs to one thread or task. The outermost wrapper makes it; inner ones find it.

    ``limits`` is written by ``timeouts/`` alone, ``outcome`` by the executor, ``shown`` by
    ``telemetry/``; the runtime begins and ends it; everything else is written by the methods of
    this class. What most operations never set is an attribute of the class until then.
    """

    has_operations = True
    """pymongo calls its own public operations inside. If False, only an application's listener
    does, and those are operations of their own."""
    shown: SpanState | None = None
    """What telemetry keeps of it; None unless it has a span."""
    transaction_span: TransactionSpan | None = None
    """The span of the transaction that this commit or abort ends."""
    hooks: LoopHooks | None = None
    """For the first loop that it runs, until that begins."""
    loop: RetryLoop | None = None
    """The last one."""
    sent_to: Address | None = None
    """The server that the last command was sent to, if that is known without a loop."""
    terminal_detector: TerminalDetector | None = None
    """Of the selection in progress."""
    handshaking: Connection | None = None
    """The driver's connection that its attempt is making, from the first hello on."""
    interruption: Exception | None = None
    """An exception of a signal handler, raised in a listener of ours. It is raised again when the
    operation ends, since pymongo drops it there."""
    in_foreign_call = False
    """Foreign code is being called for it: see ``in_progress.reported``."""
    ended = False
    ended_ns: int | None = None
    """Since the epoch, if its end is published later; None is now."""
    seconds = 0.0
    """How long it took, once it has ended."""
    has_policy = True
    """A policy may apply to it."""
    token: Token[Operation | None] | None = None
    outer_context: Context | None = None
    """OpenTelemetry's context around the operation, if the operation replaced it."""

    def __init__(
        self,
        call: Call,
        limits: Limits | None = None,
        hooks: LoopHooks | None = None,
        transaction_span: TransactionSpan | None = None,
    ) -> None:
        self.started = time.perf_counter()
        """On the clock of ``time.perf_counter``, in seconds."""
        self.call = call
        self.limits = Limits() if limits is None else limits
        self.outcome = Outcome()
        self.reads_inside = call.name not in WRITES
        """pymongo fetches batches for it, as it does for everything except writes: they are no
        operations of their own."""
        if hooks is not None:
            self.hooks = hooks
        if transaction_span is not None:
            self.transaction_span = transaction_span

    def __str__(self) -> str:
        return self.call.name

    # A property that is written in Python would cost each read a call; these are read often.
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
        """Return the driver's server that the last loop selected; None without one."""
        return None if self.loop is None else self.loop.server

    @property
    def address(self) -> Address | None:
        """Return the server that the last loop selected, or that the last command was sent to."""
        server = None if self.loop is None else self.loop.server
        return self.sent_to if server is None else driver.selection.address(server)

    def server_text(self) -> str | None:
        """Return ``"host:port"``."""
        return None if (address := self.address) is None else address_text(address)

    def note_server(self, address: Address | None) -> None:
        """Note the server that a command is sent to."""
        self.sent_to = address

    # While it runs.

    def activate(self) -> None:
        """Make it the operation in progress. The runtime does the same for a public operation,
        without this call, since it is on the way of every healthy operation."""
        self.token = CURRENT.set(self)

    def leave_context(self) -> None:
        """Leave OpenTelemetry's current context until the operation is left: its span is not the
        parent of what follows."""
        self.outer_context = context.get_current()
        context.attach(Context())

    def elapsed(self) -> float:
        """Return the seconds since it began."""
        return time.perf_counter() - self.started

    def hook_first_loop(self, hooks: LoopHooks) -> None:
        """Have ``hooks`` called by the first loop that it runs."""
        self.hooks = hooks

    def take_hooks(self) -> LoopHooks | None:
        """Return the hooks for the first loop, once."""
        hooks, self.hooks = self.hooks, None
        return hooks

    def note_handshake(self, connection: Connection | None) -> None:
        """Note the driver's connection that its attempt is making; None once that is over."""
        self.handshaking = connection

    def begin_attempt(self) -> None:
        """Forget what belongs to the attempt before."""
        self.terminal_detector = None

    def detect_terminal(self, detector: TerminalDetector) -> None:
        """Keep ``detector`` until the attempt is over."""
        self.terminal_detector = detector

    def interrupt(self, error: Exception) -> None:
        """Have ``error``, which a signal handler raised in a listener, raised at the end."""
        self.interruption = error

    def another_try(self, hooks: LoopHooks) -> Operation:
        """Return an operation that makes the same call, beside this one, with an outcome of its
        own."""
        tried = Operation(self.call, self.limits.for_another_try(), hooks)
        tried.started, tried.has_policy = self.started, self.has_policy
        if self.shown is not None:
            tried.shown = self.shown.for_another_try()
        return tried

    def leave_try(self) -> None:
        """Leave an operation that ``another_try`` made; what happened to it can still be read."""
        self.ended, self.call, self.hooks = True, ENDED, None

    def adopt(self, tried: Operation) -> None:
        """Take over what happened to a try."""
        self.outcome, self.limits.waits = tried.outcome, tried.limits.waits
        self.loop, self.sent_to, self.shown = tried.loop, tried.sent_to, tried.shown

    def forget_outcome(self) -> None:
        """Break the reference cycles through the last loop, and through the final error, whose
        traceback refers to the operation."""
        self.loop, self.outcome = None, ENDED_OUTCOME

    @property
    def outer(self) -> Operation | None:
        """The operation that this one began inside of, even if that has ended."""
        before = None if self.token is None else self.token.old_value
        return before if isinstance(before, Operation) else None

    def is_closed_by(self, error: BaseException) -> bool:
        """Return True if its coroutine is being closed before it has finished.

        The garbage collector may do that anywhere, also while the thread holds a lock: no foreign
        code may be called then. pymongo's cleanup may have replaced the GeneratorExit by another
        error, but in the context of the collector's thread the operation is not in progress.
        """
        return isinstance(error, GeneratorExit) or CURRENT.get() is not self

    # Its end.

    def abandon(self) -> None:
        """After a bug of ours kept it from ending as usual: it is over."""
        self.ended = True

    def _restore(self) -> None:
        """Put back what was there before, if the current context still holds this operation.

        It does not if its coroutine is closed from another context: then nothing is to be restored.
        """
        if CURRENT.get() is not self:
            return
        deadline = self.limits.deadline
        if isinstance(deadline, driver.csot.ActiveTimeout) and deadline.before is not None:
            deadline.__exit__(None, None, None)
        if self.outer_context is not None:
            # Not by detaching, which takes any exception for its own fault.
            context.attach(self.outer_context)
        if self.token is not None:
            CURRENT.reset(self.token)

    def leave(self) -> None:
        """Leave it: the caller's own span and timeout are the current ones again.

        If an exception of a signal handler strikes half-way, it may be called once more: so what
        is active ends first, and the operation is forgotten last.
        """
        self.ended = True
        self._restore()
        # A context that outlives the operation, a connection's or a task's, keeps it.
        if self.limits.deadline is not NO_DEADLINE:
            self.limits.deadline = PAST_DEADLINE
        self.limits.waits = None
        self.outcome, self.call = ENDED_OUTCOME, ENDED
        self.loop = self.hooks = self.interruption = self.terminal_detector = None
        # A task that was started inside, and goes on, is treated like any other.
        self.in_foreign_call = False

    def leave_unfinished(self) -> None:
        """Leave it because its coroutine is closed; what telemetry has to report is kept: see
        ``deferred``. An operation that begins later in its own context finds it among what is
        inherited."""
        self.ended = True
        self.seconds, self.ended_ns = self.elapsed(), time.time_ns()
        if CURRENT.get() is self:
            keep_variables()
            self._restore()
        self.call = self.call._replace(client=ENDED.client, source=None, session=None)
        self.outcome.final_error = None
        self.loop = self.hooks = self.terminal_detector = None
        self.token = None

    def detach(self) -> None:
        """In a forked child: the operation is the parent's, which ends and counts it."""
        self.ended, self.reads_inside = True, False
        self.call = self.call._replace(is_public=False)
        self.shown = None


ENDED_OUTCOME = Outcome()
"""Of all operations that have ended; nothing is written to it."""

CURRENT: ContextVar[Operation | None] = ContextVar("pymongo_resilience_operation", default=None)
"""See ``in_progress``."""
