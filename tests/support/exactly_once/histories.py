"""Every history of an operation: what may happen to each of its attempts, in every order.

For each attempt there is a choice of what the client sees, and behind that a fate which it cannot
see: an attempt whose connection is cut may have been executed or not. The client's side is the
library's own: classification, rules, strategies, budgets, transaction numbers, and the executor,
in virtual time. The other side is the reference server. Since the client decides by what it sees,
its side is played once for all the fates behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pymongo.errors import (
    AutoReconnect,
    ExecutionTimeout,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo_resilience_instrumentation.driver.attempts import AttemptFacts, TxnNumberLostError
from pymongo_resilience_instrumentation.failures.classify import failure_of
from pymongo_resilience_instrumentation.failures.reasons import mark_unsent
from pymongo_resilience_instrumentation.retries.final_error import error_to_raise
from pymongo_resilience_instrumentation.retries.txn_number import (
    TxnNumber,
    TxnNumberUnsupportedError,
)
from support.engine.fake_clock import FakeClock
from support.exactly_once.reference_server import Command, ReferenceServer

from pymongo_resilience.clock import Deadline
from pymongo_resilience.events import Event, RetryScheduled
from pymongo_resilience.executor import Executor
from pymongo_resilience.rules.budget import RetryBudget
from pymongo_resilience.rules.failure import NO_WRITES_PERFORMED, Failure
from pymongo_resilience.rules.outcome import Outcome
from pymongo_resilience.rules.retry_rules import Retry, RetryRules, Rule
from pymongo_resilience.rules.retry_state import Kind, RetryState
from pymongo_resilience.rules.strategy import RetryStrategy

TRIP = 0.01
"""Seconds that an attempt takes unless it waits for an answer that never comes."""
SILENCE = 0.4
"""Seconds after which an unanswered attempt is given up without a deadline."""
MINUTES = 30
"""For which the reference server keeps sessions."""


class Operation(NamedTuple):
    """What the application calls."""

    name: str
    kind: Kind
    commands: tuple[Command, ...]
    """Sent one after the other, as a bulk write does; each has attempts of its own."""
    in_transaction: bool = False
    idempotent: bool = False
    """Declared so: applied more than once, it is as if applied once."""
    acknowledged: bool = True


Effect = Callable[[ReferenceServer, Command, int | None], None]


class Fate(NamedTuple):
    """What may really happen to an attempt, which the client cannot see."""

    name: str
    act: Effect
    fits: Callable[[Command], bool] = lambda _command: True


class Choice(NamedTuple):
    """What the client sees of one attempt, and what may be behind it."""

    name: str
    error: Callable[[int | None], PyMongoError] | None
    """Makes what pymongo would raise, by the attempt's transaction number; None for a success."""
    fates: tuple[Fate, ...]
    sent: bool = True
    """False if the attempt fails before it has a connection."""
    waits: bool = False
    """The attempt takes all the time it has."""
    fits: Callable[[Command], bool] = lambda _command: True


def _answer(code: int, *labels: str) -> OperationFailure:
    document = {"ok": 0, "code": code, "errmsg": "", "errorLabels": [*labels]}
    return OperationFailure("", code, document)


def _not_primary(code: int, number: int | None, *labels: str) -> NotPrimaryError:
    labels = labels if number is None else ("RetryableWriteError", *labels)
    document = {"ok": 0, "code": code, "errmsg": "", "errorLabels": [*labels]}
    return NotPrimaryError("not primary", document)


def _unreplicated(number: int | None) -> WriteConcernError:
    labels = [] if number is None else ["RetryableWriteError"]
    document = {"ok": 1, "writeConcernError": {"code": 91}, "errorLabels": labels}
    return WriteConcernError("shutting down", 91, document)


def _execute_first(server: ReferenceServer, command: Command, number: int | None) -> None:
    server.execute(command, number, statements=1)


def _execute_and_roll_back(server: ReferenceServer, command: Command, number: int | None) -> None:
    server.execute(command, number)
    server.roll_back(command, number)


def _writes(command: Command) -> bool:
    return bool(command.effects)


def _has_several_statements(command: Command) -> bool:
    return len(command.effects) > 1


NOTHING = Fate("not executed", lambda *_: None)
EXECUTED = Fate("executed", ReferenceServer.execute)
HALF_EXECUTED = Fate("executed in part", _execute_first, _has_several_statements)
ROLLED_BACK = Fate("executed, and rolled back by an election", _execute_and_roll_back, _writes)
LATE = Fate("executed after all that follows", ReferenceServer.delay, _writes)
UNKNOWN = (NOTHING, EXECUTED._replace(fits=_writes), HALF_EXECUTED, ROLLED_BACK, LATE)

CHOICES = (
    # The first one ends every history.
    Choice("succeeds", None, (EXECUTED,)),
    Choice("connection cut", lambda _: AutoReconnect("connection closed"), UNKNOWN),
    Choice("no answer", lambda _: NetworkTimeout("timed out"), UNKNOWN, waits=True),
    Choice("no connection", lambda _: AutoReconnect("refused"), (NOTHING,), sent=False),
    Choice("no server", lambda _: ServerSelectionTimeoutError(""), (NOTHING,), sent=False),
    Choice(
        "rejected by an overloaded server",
        lambda _: _answer(462, "SystemOverloadedError", "RetryableError", NO_WRITES_PERFORMED),
        (NOTHING,),
    ),
    Choice(
        "not primary",
        lambda number: _not_primary(10107, number, NO_WRITES_PERFORMED),
        (NOTHING,),
    ),
    Choice(
        "interrupted by a change of the primary",
        lambda number: _not_primary(11602, number),
        (NOTHING, HALF_EXECUTED, EXECUTED._replace(fits=_writes), ROLLED_BACK),
    ),
    Choice("executed, not replicated", _unreplicated, (EXECUTED, ROLLED_BACK), fits=_writes),
    Choice("refused", lambda _: _answer(2), (NOTHING,)),
    Choice("write conflict", lambda _: _answer(112), (NOTHING, HALF_EXECUTED)),
)


class GaveUp(Exception):  # noqa: N818 - what the application gets
    """The rules declined: the failure whose error is raised, and the rule."""

    def __init__(self, raised: Failure, rule: Rule) -> None:
        super().__init__(rule.value)
        self.raised = raised
        self.rule = rule


class RunawayError(BaseException):
    """An attempt was begun after the deadline. It ends the history: nothing retries it."""


class _Connection(NamedTuple):
    """What ``TxnNumber`` reads of pymongo's connection."""

    logical_session_timeout_minutes: int = MINUTES


CHOICES_OF = {
    True: CHOICES,
    False: tuple(each for each in CHOICES if each.fits(Command(()))),
}
"""By whether the command writes."""


class Step(NamedTuple):
    """One attempt, as it was made."""

    place: int
    """The command's, in its operation."""
    command: Command
    number: int | None
    """The transaction number that it was sent with."""
    choice: Choice


@dataclass
class World:
    """What the client sees in one history: its clock, and the choices made so far."""

    operation: Operation
    path: list[int]
    """Choices by number; what is chosen beyond its end is the first choice, and is added."""
    timeout: float | None
    clock: FakeClock = field(default_factory=lambda: FakeClock(1000.0))
    options: list[int] = field(default_factory=list)
    """How many choices there were at each step."""
    steps: list[Step] = field(default_factory=list)
    begun_late: bool = False
    """An attempt was begun after the deadline."""

    def __post_init__(self) -> None:
        self.deadline = None if self.timeout is None else Deadline.after(self.clock, self.timeout)

    def choose(self, command: Command, most: int) -> Choice:
        """Return what the client sees of this attempt; after ``most`` steps it succeeds."""
        fitting = CHOICES_OF[bool(command.effects)]
        step = len(self.options)
        if step >= most:
            return fitting[0]
        if step == len(self.path):
            self.path.append(0)
        self.options.append(len(fitting))
        return fitting[self.path[step]]

    def wait_for_an_answer(self) -> None:
        """Let the time pass after which the driver gives an attempt up."""
        left = SILENCE if self.deadline is None else max(0.0, self.deadline.remaining())
        self.clock.advance(left)


class Run:
    """One operation as the executor's work. The part of pymongo's loop is played here; what the
    library decides is the library's own code."""

    def __init__(
        self, world: World, strategy: RetryStrategy, budget: RetryBudget, most: int
    ) -> None:
        self.world = world
        self.strategy = strategy
        self.budget = budget
        self.most = most
        self.command = 0
        """The place of the command at hand."""
        self.progress = 0
        self.last: Failure | None = None
        self.was_sent = False
        self.retryable: bool = self._current.numbered
        self.next_number = 0
        self.number: int | None = None
        self.number_of: dict[int, int] = {}
        self.txn_number = TxnNumber(world.clock)
        self.outcome = Outcome()
        self.repeated = False
        self.began = world.clock.now()
        self.state = self._new_state()

    @property
    def _current(self) -> Command:
        return self.world.operation.commands[self.command]

    # What TxnNumber asks of pymongo's loop.

    def supports_txn_number(self, _connection: _Connection) -> bool:
        return self._current.numbered

    def refuse_lost_number(self, _connection: _Connection) -> None:
        """No server of these histories loses one."""

    def set_retryable(self, retryable: bool) -> None:
        self.retryable = retryable

    @property
    def client(self) -> Any:
        return self

    topology_description = _Connection()

    # The work.

    def run(self, executor: Executor) -> None:
        """As pymongo's loop does it: the first attempt is not the executor's."""
        try:
            self.again()
        except PyMongoError as error:
            executor.run(self, error)
        else:
            self.budget.succeeded(retried=False)

    def again(self, _plan: None = None, /) -> None:
        """Send the commands that are still to be sent, until one fails."""
        world = self.world
        if world.deadline is not None and world.clock.now() > world.deadline.expires_at:
            world.begun_late = True
            raise RunawayError
        while True:
            if world.deadline is not None and world.deadline.expired():
                # pymongo sends no command once the time is up.
                self.was_sent = False
                raise mark_unsent(ExecutionTimeout("no time left", 50))
            self._send(world)
            if self.command + 1 == len(world.operation.commands):
                return
            self.command += 1
            self.repeated = False
            self.retryable = self._current.numbered

    def _send(self, world: World) -> None:
        """Send the command at hand. Raises what pymongo would raise."""
        command = self._current
        choice = world.choose(command, self.most)
        self.was_sent = choice.sent
        if choice.sent and self.repeated and command.numbered:
            self.was_sent = False
            self.txn_number.take(self, _Connection())  # type: ignore[arg-type]  # stands in for pymongo's loop
            self.was_sent = True
        number = self._number_to_send()
        world.steps.append(Step(self.command, command, number, choice))
        world.clock.advance(TRIP)
        if choice.waits:
            world.wait_for_an_answer()
        if choice.error is not None:
            raise choice.error(number)

    def _number_to_send(self) -> int | None:
        """Return the command's transaction number, which is allocated once, or None without one."""
        if not (self._current.numbered and self.retryable):
            return None
        if self.command not in self.number_of:
            self.number_of[self.command] = self.allocate()
        return self.number_of[self.command]

    def allocate(self) -> int:
        """Return a transaction number that was not used before."""
        self.next_number += 1
        return self.next_number

    def _new_state(self) -> RetryState:
        operation, world = self.world.operation, self.world
        return RetryState(
            name=operation.name,
            namespace="shop.orders",
            kind=operation.kind,
            strategy=self.strategy,
            in_transaction=operation.in_transaction,
            acknowledged=operation.acknowledged,
            declared_idempotent=operation.idempotent,
            deadline=world.deadline,
            budget=self.budget,
        )

    def classify(self, error: Exception, /) -> Failure:
        state = self.state
        if self.progress != self.command:
            if state.attempts:
                state.budget.succeeded(retried=True)
            state.next_command()
            self.txn_number.next_command()
        self.progress = self.command
        if isinstance(error, TxnNumberUnsupportedError):
            earlier = self.txn_number.unsupported()
            if earlier is not None:
                return earlier
        if isinstance(error, TxnNumberLostError):
            error = AutoReconnect(str(error))
        carried = self.was_sent and self._current.numbered and self.retryable
        failure = failure_of(error, AttemptFacts(self.was_sent, carried, "a:27017", 0.0))
        return self.txn_number.known(self, failure, state, self.began)  # type: ignore[arg-type]  # as above

    def report(self, failure: Failure, /) -> None:
        self.budget.failed(failure, retried=self.state.attempts > 0)

    def plan(self, failure: Failure, _retry: Retry, /) -> None:
        if self.last is None or not failure.no_writes_performed:
            self.last = failure
        self.repeated = True
        self.txn_number.bind(failure, self.state)

    def final_error(self, failure: Failure, rule: Rule, /) -> Exception:
        return GaveUp(error_to_raise(self.last, failure), rule)

    def failed_before_sending(self, error: Exception, /) -> bool:
        return False


class Waits:
    """A listener that keeps when each wait was to end."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.ends: list[float] = []

    def on_event(self, event: Event, /) -> None:
        if isinstance(event, RetryScheduled):
            self.ends.append(self._clock.now() + event.delay)


class End(NamedTuple):
    """How the client's side of a history ended; the fates of its attempts are still open."""

    world: World
    gave_up: GaveUp | None
    waits: list[float]
    """When each wait was to end."""


def ends(
    operation: Operation,
    strategy: RetryStrategy,
    make_budget: Callable[[FakeClock], RetryBudget],
    timeout: float | None,
    *,
    most: int,
    rules: RetryRules,
    make_run: type[Run] = Run,
) -> Iterator[End]:
    """Play all that the client may see in up to ``most`` attempts, depth first."""
    path: list[int] = []
    while True:
        world = World(operation, path, timeout)
        listener = Waits(world.clock)
        run = make_run(world, strategy, make_budget(world.clock), most)
        gave_up = None
        try:
            run.run(Executor(rules, world.clock, listener))
        except RunawayError:
            pass
        except GaveUp as error:
            gave_up = error
        yield End(world, gave_up, listener.ends)
        # The next path: the last step that has another choice takes it.
        del path[len(world.options) :]
        while path and path[-1] + 1 == world.options[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1


class Behind(NamedTuple):
    """One state that the server may be in, and fates that lead to it."""

    server: ReferenceServer
    fates: tuple[Fate, ...]


def servers(end: End) -> tuple[int, list[Behind]]:
    """Play every combination of fates behind what the client saw.

    Returns how many histories those are, and the distinct states of the server that they end in:
    histories that have led to the same state are followed together.
    """
    histories = 1
    behind = {ReferenceServer().key(): Behind(ReferenceServer(), ())}
    for step in end.world.steps:
        fates = [fate for fate in step.choice.fates if fate.fits(step.command)]
        histories *= len(fates)
        following: dict[object, Behind] = {}
        for before in behind.values():
            for fate in fates:
                server = before.server.copy()
                fate.act(server, step.command, step.number)
                following.setdefault(server.key(), Behind(server, (*before.fates, fate)))
        behind = following
    for each in behind.values():
        each.server.deliver_delayed()
    return histories, [*behind.values()]


def problems_of_client(end: End) -> Iterator[str]:
    """What must hold whatever happened at the server, and does not."""
    world = end.world
    numbers: dict[int, set[int | None]] = {}
    for step in world.steps:
        if step.choice.sent:
            numbers.setdefault(step.place, set()).add(step.number)
    if any(len(each) > 1 for each in numbers.values()):
        yield "two attempts of one command with different transaction numbers"
    if world.begun_late:
        yield "an attempt after the deadline"
    if world.deadline is not None and any(wait > world.deadline.expires_at for wait in end.waits):
        yield "a wait past the deadline"


def problems_at_server(end: End, server: ReferenceServer) -> Iterator[str]:
    """What must hold in one history, and does not."""
    operation, gave_up = end.world.operation, end.gave_up
    counts = [server.applied[effect] for each in operation.commands for effect in each.effects]
    if gave_up is None and operation.acknowledged and not all(counts):
        yield "acknowledged, and not applied"
    if not operation.idempotent and any(count > 1 for count in counts):
        yield "applied more than once"
    if gave_up is None or not any(counts):
        return
    if NO_WRITES_PERFORMED in gave_up.raised.labels and len(operation.commands) == 1:
        yield "the error has the label NoWritesPerformed, and something was written"
    if not any(step.choice.sent for step in end.world.steps):
        yield "nothing was sent, and something was written"
