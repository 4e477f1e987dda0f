"""What is sent to end an open transaction: each row of the tables in ``open_transactions``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from pymongo_resilience import open_transactions
from pymongo_resilience.open_transactions import (
    LIFETIME,
    MAX_TRANSACTIONS,
    Event,
    OpenTransaction,
    OpenTransactions,
    State,
    Step,
    event_of,
    next_step,
    state_after,
)
from pymongo_resilience.rules.failure import SYSTEM_OVERLOADED, Failure, RetryReason, Stage

BOOLS = {"yes": [True], "no": [False], "any": [False, True]}
ROUTER = ("router", 27017)


def rows(first_column: str) -> Iterator[list[str]]:
    """The rows of the table of the module's docstring that begins with this column."""
    lines = iter((open_transactions.__doc__ or "").splitlines())
    for line in lines:
        if line.strip().startswith(f"{first_column}  "):
            next(lines)
            for row in itertools.takewhile(str.strip, lines):
                yield re.split(r"\s{2,}", row.strip())


EVENTS = [
    (Event[event], forgotten, lost, before, after)
    for event, may_be_forgotten, router_is_lost, after in rows("event")
    for forgotten in BOOLS[may_be_forgotten]
    for lost in BOOLS[router_is_lost]
    for before in (State.OPEN, State.FORGOTTEN)
]
STEPS = [
    (State[state], lost, used, Step[step])
    for state, router_is_lost, in_use, step in rows("state")
    for lost in BOOLS[router_is_lost]
    for used in BOOLS[in_use]
]


def test_the_tables_have_each_case_once() -> None:
    both = (False, True)
    states = (State.OPEN, State.FORGOTTEN)
    assert sorted((e.name, f, lost, b.name) for e, f, lost, b, _ in EVENTS) == sorted(
        (e.name, f, lost, b.name) for e, f, lost, b in itertools.product(Event, both, both, states)
    )
    assert sorted((s.name, lost, used) for s, lost, used, _ in STEPS) == sorted(
        (s.name, lost, used) for s, lost, used in itertools.product(states, both, both)
    )


@pytest.mark.parametrize(("event", "forgotten", "lost", "before", "after"), EVENTS)
def test_the_state_after_an_event(
    event: Event, forgotten: bool, lost: bool, before: State, after: str
) -> None:
    found = state_after(event, before, may_be_forgotten=forgotten, router_is_lost=lost)
    assert found is (before if after == "unchanged" else State[after])


@pytest.mark.parametrize(("state", "lost", "used", "step"), STEPS)
def test_the_next_step(state: State, lost: bool, used: bool, step: Step) -> None:
    assert next_step(state, router_is_lost=lost, session_is_in_use=used) is step


@pytest.mark.parametrize(
    ("stage", "reason", "code", "labels", "timed_out", "event"),
    [
        (Stage.NOT_SENT, RetryReason.NODE_NOT_AVAILABLE, None, (), False, Event.UNANSWERED),
        (Stage.NOT_SENT, RetryReason.UNKNOWN, 462, (SYSTEM_OVERLOADED,), False, Event.UNANSWERED),
        (Stage.IN_FLIGHT, RetryReason.NO_REPLY, None, (), True, Event.UNANSWERED),
        (Stage.ANSWERED, RetryReason.OVERLOADED, 462, (SYSTEM_OVERLOADED,), False, Event.REFUSED),
        (Stage.ANSWERED, RetryReason.UNKNOWN, 1, (SYSTEM_OVERLOADED,), False, Event.REFUSED),
        (Stage.ANSWERED, RetryReason.NOT_PRIMARY, 91, (), False, Event.REFUSED),
        (Stage.ANSWERED, RetryReason.TEMPORARILY_UNAVAILABLE, 6, (), False, Event.REFUSED),
        (Stage.ANSWERED, RetryReason.UNKNOWN, 50, (), True, Event.REFUSED),
        (Stage.ANSWERED, RetryReason.UNKNOWN, 251, (), False, Event.NO_SUCH_TRANSACTION),
        (Stage.ANSWERED, RetryReason.UNKNOWN, 256, (), False, Event.ERROR),
        (Stage.ANSWERED, RetryReason.ACCESS_ERROR, 13, (), False, Event.ERROR),
    ],
)  # fmt: skip
def test_the_event_of_a_failed_abort(
    stage: Stage, reason: RetryReason, code: int | None, labels: tuple[str, ...],
    timed_out: bool, event: Event,
) -> None:  # fmt: skip
    failure = Failure(
        RuntimeError(), stage, reason, code=code, labels=frozenset(labels), timed_out=timed_out
    )
    assert event_of(failure) is event


class Client:
    """The background task of a client: what it sends at which time."""

    def __init__(self) -> None:
        self.transactions = OpenTransactions()
        self.lost = self.used = False

    def run(self, event: Event, now: float = 0.0) -> list[Step]:
        """Take the steps that are due, each of which ends with ``event``; return them."""
        steps = []
        for waiting, step in self.transactions.due(lambda _: self.lost, lambda _: self.used, now):
            steps.append(step)
            self.transactions.note(waiting, step, event, router_is_lost=self.lost)
        return steps


@pytest.fixture
def client() -> Client:
    return Client()


def a_transaction(number: int = 1, router: tuple[str, int] | None = None) -> OpenTransaction:
    return OpenTransaction((b"session", number), {"abortTransaction": 1}, router, None)


def test_it_is_aborted_until_there_is_an_answer(client: Client) -> None:
    client.transactions.add(a_transaction(), State.OPEN, 0)
    assert client.run(Event.UNANSWERED) == [Step.ABORT]
    assert client.run(Event.REFUSED) == [Step.ABORT]
    assert client.run(Event.NO_SUCH_TRANSACTION) == [Step.ABORT], "the primary knows"
    assert client.run(Event.DONE) == []


def test_one_that_its_router_has_forgotten_is_killed_with_its_session(client: Client) -> None:
    client.transactions.add(a_transaction(router=ROUTER), State.OPEN, 0)
    client.used = True
    assert client.run(Event.NO_SUCH_TRANSACTION) == [Step.ABORT]
    assert client.run(Event.DONE) == [], "the application uses its session"
    client.used = False
    assert client.run(Event.UNANSWERED) == [Step.KILL_SESSION]
    assert client.run(Event.NO_SUCH_TRANSACTION) == [Step.KILL_SESSION]
    assert client.run(Event.DONE) == []


def test_one_whose_router_comes_back_is_aborted(client: Client) -> None:
    client.transactions.add(a_transaction(router=ROUTER), State.OPEN, 0)
    client.lost = client.used = True
    assert client.run(Event.DONE) == []
    client.lost = False
    assert client.run(Event.DONE) == [Step.ABORT]
    assert client.run(Event.DONE) == []


def test_it_is_left_to_the_server_after_a_minute(client: Client) -> None:
    client.transactions.add(a_transaction(), State.OPEN, 100)
    assert client.run(Event.UNANSWERED, 100 + LIFETIME - 1) == [Step.ABORT]
    assert client.run(Event.UNANSWERED, 100 + LIFETIME) == []
    assert client.run(Event.UNANSWERED, 100) == []


def test_one_that_is_noticed_twice_is_ended_once(client: Client) -> None:
    for _ in range(2):
        client.transactions.add(a_transaction(), State.OPEN, 0)
    client.transactions.add(a_transaction(2), State.ENDED, 0)
    assert client.run(Event.DONE) == [Step.ABORT]
    client.transactions.add(a_transaction(2), State.OPEN, 0)
    client.transactions.clear()
    assert client.run(Event.DONE) == []


def test_one_that_was_not_answered_because_the_task_was_cancelled_still_waits(
    client: Client,
) -> None:
    client.transactions.add(a_transaction(), State.OPEN, 0)
    ((_, step),) = client.transactions.due(lambda _: False, lambda _: False, 0)
    assert step is Step.ABORT
    assert client.run(Event.DONE) == [Step.ABORT]


def test_of_too_many_the_oldest_are_left_to_the_server(client: Client) -> None:
    for number in range(MAX_TRANSACTIONS + 2):
        client.transactions.add(a_transaction(number), State.OPEN, 0)
    due = client.transactions.due(lambda _: False, lambda _: False, 0)
    numbers = [waiting.transaction.key[1] for waiting, _ in due]
    assert numbers == [*range(2, MAX_TRANSACTIONS + 2)]
