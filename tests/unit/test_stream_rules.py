"""The steps of a change stream's consumer, without a server."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from pymongo_resilience.stream_rules import (
    ChangeTooLargeError,
    Close,
    Delivery,
    ErrorKind,
    ForeignTokenError,
    Handle,
    HandlerFailed,
    HistoryLostError,
    Load,
    Next,
    Open,
    OvertakenError,
    Pause,
    Received,
    Save,
    Skip,
    Step,
    StreamInvalidatedError,
    StreamRules,
    consume,
)

if TYPE_CHECKING:
    from pymongo_resilience.events import StreamNotice

ERRORS: dict[type[Exception], ErrorKind] = {
    ConnectionError: ErrorKind.PASSING,
    PermissionError: ErrorKind.TERMINAL,
    LookupError: ErrorKind.HISTORY_LOST,
    ValueError: ErrorKind.FOREIGN_TOKEN,
    OverflowError: ErrorKind.TOO_LARGE,
    RuntimeError: ErrorKind.FINAL,
}


def kind_of(error: Exception) -> ErrorKind:
    return ERRORS[type(error)]


class World:
    """A server with numbered changes, a store of tokens, and a handler; each may fail."""

    def __init__(self, changes: int, **rules: Any) -> None:
        self.rules = StreamRules("test", **rules)
        self.changes = [{"_id": {"n": n}, "operationType": "insert"} for n in range(1, changes + 1)]
        self.stored: Any = None
        self.handled: list[int] = []
        self.skipped: list[int] = []
        self.failures: deque[tuple[type[Step], Exception]] = deque()
        """The next step of this kind fails with this."""
        self.now = 0.0
        self.load_s = 0.25
        """Seconds that the first token takes to load."""
        self.opened_at: list[float] = []
        self.notices: list[StreamNotice] = []
        self.is_stopping = False
        self._at: int | None = None
        self.reduced = False
        self.idle = 0

    def run(self, most: int = 10_000) -> None:
        steps = consume(self.rules, self, kind_of, lambda: self.now, self.notices.append)
        try:
            step = next(steps)
            for _ in range(most):
                try:
                    result = self.do(step)
                except Exception as error:  # noqa: BLE001 - as runners do
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration:
            return
        raise AssertionError("it does not end")

    def do(self, step: Step) -> Any:
        if isinstance(step, Open):
            self.opened_at.append(self.now)
        if self.failures and isinstance(step, self.failures[0][0]):
            raise self.failures.popleft()[1]
        match step:
            case Load():
                self.now, self.load_s = self.now + self.load_s, 0.0
                return self.stored
            case Open(token, reduced):
                self.reduced = reduced
                self._at = 0 if token is None else token["n"]
                return {"n": self._at}
            case Next():
                assert self._at is not None, "the stream is open"
                if self._at >= len(self.changes):
                    self.now += 1
                    self.idle += 1
                    self.is_stopping = self.idle > 12
                    return Received(None, {"n": self._at})
                self._at += 1
                return Received(self.changes[self._at - 1], {"n": self._at})
            case Handle(change, token, before):
                self.handled.append(change["_id"]["n"])
                self.store(token, before, in_transaction=True)
            case Skip(change, _, token, before):
                self.skipped.append(change["_id"]["n"])
                self.store(token, before, in_transaction=True)
            case Save(token, before):
                self.store(token, before)
            case Pause(seconds):
                self.now += seconds
            case Close():
                self._at = None
        return None

    def store(self, token: Any, before: Any, *, in_transaction: bool = False) -> None:
        exactly = self.rules.delivery is Delivery.EXACTLY_ONCE
        assert not exactly or before == self.stored
        if exactly or not in_transaction:
            self.stored = token

    def shortest_interval(self) -> float:
        """Seconds between two attempts to open the stream."""
        return min((b - a for a, b in pairwise(self.opened_at)), default=math.inf)

    def steps(self) -> list[str]:
        return [each.step.value for each in self.notices]


@pytest.mark.parametrize("delivery", Delivery)
def test_every_change_is_handled_and_the_last_token_stored(delivery: Delivery) -> None:
    world = World(5, delivery=delivery)
    world.run()
    assert world.handled == [1, 2, 3, 4, 5]
    assert world.stored == {"n": 5}
    assert world.steps() == ["opened", "stopped"]


def test_where_it_begins_is_stored_before_anything_was_handled() -> None:
    world = World(0)
    world.run()
    assert world.stored == {"n": 0}


@pytest.mark.parametrize("step", [Load, Open, Next, Handle, Save])
@pytest.mark.parametrize("delivery", Delivery)
def test_after_a_passing_failure_it_goes_on(step: type[Step], delivery: Delivery) -> None:
    world = World(5, delivery=delivery)
    world.failures.extend([(step, ConnectionError())] * 3)
    world.run()
    assert list(dict.fromkeys(world.handled)) == [1, 2, 3, 4, 5]
    assert world.stored == {"n": 5}
    assert world.steps().count("lost") == 3


failing = st.lists(st.sampled_from([Load, Open, Next, Handle, Save]), max_size=20)


@given(failing, st.integers(0, 8))
def test_with_exactly_once_no_failure_loses_or_doubles_a_change(
    steps: list[type[Step]], changes: int
) -> None:
    world = World(changes, delivery=Delivery.EXACTLY_ONCE)
    world.failures.extend((step, ConnectionError()) for step in steps)
    world.run()
    assert world.handled == list(range(1, changes + 1))
    assert world.shortest_interval() >= 1


@given(failing, st.integers(0, 8), st.integers(1, 5))
def test_with_at_least_once_no_failure_loses_a_change(
    steps: list[type[Step]], changes: int, save_every: int
) -> None:
    world = World(changes, save_every=save_every)
    world.failures.extend((step, ConnectionError()) for step in steps)
    world.run()
    assert list(dict.fromkeys(world.handled)) == list(range(1, changes + 1))


def test_while_there_is_no_server_it_tries_once_a_second_at_most() -> None:
    world = World(1)
    world.failures.extend([(Open, ConnectionError())] * 8)
    world.run()
    pauses = [each.pause for each in world.notices if each.step.value == "lost"]
    assert pauses[:4] == [1, 2, 4, 8]
    assert world.shortest_interval() >= 1
    assert max(each for each in pauses if each is not None) <= 15


def test_a_stream_that_ran_well_is_opened_again_at_once() -> None:
    world = World(5)
    world.now = 100
    world.run()
    again = World(3)
    again.failures.append((Next, ConnectionError()))
    again.run()
    assert again.handled == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LookupError(), HistoryLostError),
        (ValueError(), ForeignTokenError),
        (OverflowError(), ChangeTooLargeError),
        (OvertakenError("test"), OvertakenError),
        (RuntimeError(), RuntimeError),
    ],
)
@pytest.mark.parametrize("step", [Open, Next])
def test_what_cannot_go_on_is_raised_once(
    step: type[Step], error: Exception, raised: type[Exception]
) -> None:
    world = World(5)
    world.stored = {"n": 2}
    world.failures.append((step, error))
    with pytest.raises(raised) as caught:
        world.run()
    assert world.stored == {"n": 2}, "the token is as it was"
    assert world.steps()[-1] == "failed"
    assert raised is RuntimeError or "test" in str(caught.value)


def test_what_is_hopeless_at_the_start_is_raised_and_later_is_not() -> None:
    world = World(2)
    world.failures.append((Open, PermissionError()))
    with pytest.raises(PermissionError):
        world.run()
    world = World(2)
    world.failures.extend([(Next, PermissionError()), (Open, PermissionError())])
    world.run()
    assert world.handled == [1, 2]


class HandlerError(Exception):
    pass


@pytest.mark.parametrize("delivery", Delivery)
def test_the_handlers_error_ends_it_and_the_change_comes_again(delivery: Delivery) -> None:
    world = World(3, delivery=delivery, save_every=10 if delivery == "at_least_once" else 1)
    for _ in range(1):
        world.failures.append((Handle, HandlerFailed(HandlerError())))
    world.handled = []
    with pytest.raises(HandlerError):
        world.run()
    assert world.steps()[-1] == "failed"
    world.run()
    assert world.handled == [1, 2, 3]


def test_the_token_of_what_was_handled_before_is_stored_when_the_handler_ends_it() -> None:
    world = World(5, save_every=100)
    do, calls = world.do, 0

    def fails_third(step: Step) -> Any:
        nonlocal calls
        if isinstance(step, Handle):
            calls += 1
            if calls == 3:
                raise HandlerFailed(HandlerError())
        return do(step)

    world.do = fails_third  # type: ignore[method-assign]
    with pytest.raises(HandlerError):
        world.run()
    assert world.stored == {"n": 2}


def test_a_handler_that_fails_is_called_again_and_then_its_change_is_skipped() -> None:
    world = World(3, handler_retries=2, skips=True)
    world.failures.extend([(Handle, HandlerFailed(HandlerError()))] * 3)
    world.run()
    assert world.skipped == [1]
    assert world.handled == [2, 3]
    assert world.stored == {"n": 3}
    assert world.steps() == ["opened", "handler_failed", "handler_failed", "skipped", "stopped"]


@pytest.mark.parametrize("stops", [False, True])
def test_an_invalidation_is_handled_and_defined(stops: bool) -> None:
    world = World(4, stops_when_invalidated=stops)
    world.changes[1]["operationType"] = "invalidate"
    if stops:
        with pytest.raises(StreamInvalidatedError):
            world.run()
        assert world.handled == [1, 2]
        assert world.stored == {"n": 2}
        world.run()
    else:
        world.run()
    assert world.handled == [1, 2, 3, 4]
    assert "invalidated" in world.steps()


def test_a_change_that_is_too_large_is_handed_over_without_its_documents() -> None:
    world = World(3, reduces_large=True)
    world.failures.append((Next, OverflowError()))
    world.run()
    assert world.handled == [1, 2, 3]
    assert not world.reduced, "only that one"
    world = World(3, reduces_large=True)
    world.failures.extend([(Next, OverflowError())] * 2)
    with pytest.raises(ChangeTooLargeError):
        world.run()


def test_a_stream_without_changes_stores_how_far_it_has_come() -> None:
    world = World(0)
    do = world.do

    def moves_on(step: Step) -> Any:
        result = do(step)
        return result._replace(token={"n": world.idle}) if isinstance(step, Next) else result

    world.do = moves_on  # type: ignore[method-assign]
    world.run()
    assert world.stored["n"] >= 10
