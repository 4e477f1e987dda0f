"""Transactions under overload and other errors: what is sent again, in which shape, how often."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import WriteConcern
from pymongo.errors import (
    AutoReconnect,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from support.clients import SentCommands, Side
from support.telemetry import Instrument
from support.transactions import IN_TRANSACTION
from support.wait_helpers import wait_for_server

from pymongo_resilience.events import RetryScheduled
from pymongo_resilience.rules.retry_rules import Rule
from pymongo_resilience.testbed import (
    CutAfter,
    CutAtHandshake,
    CutBefore,
    Election,
    Fail,
    Fault,
    Overload,
    ReplicaSet,
    ShardedCluster,
)

pytestmark = pytest.mark.oldest

FAST = {"base_backoff_ms": 1, "max_backoff_ms": 1}
TRANSIENT = "TransientTransactionError"
OVERLOADED = ("RetryableError", "SystemOverloadedError")


@contextlib.contextmanager
def transaction(side: Side, client: Any, **options: Any) -> Iterator[Any]:
    """Neither committed nor aborted by the block, but ended with its session."""
    session = client.start_session()
    side.do(session.start_transaction, **options)
    try:
        yield session
    finally:
        side.do(session.end_session)


def numbers(commands: list[Any]) -> set[int]:
    return {int(command["txnNumber"]) for command in commands}


@pytest.fixture
def seeded(control: Any, database: str) -> str:
    control[database].coll.insert_one({"_id": 0, "n": 0})
    return database


@pytest.mark.parametrize("name", IN_TRANSACTION)
def test_an_overloaded_first_command_starts_the_transaction_again(
    name: str, side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument
) -> None:
    telemetry = instrument(**FAST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    command, call = IN_TRANSACTION[name]
    proxy.inject(Overload(command, times=5))
    with transaction(side, client) as session:
        call(side, client[seeded], session)
        side.do(client[seeded].coll.insert_one, {"_id": "then"}, session=session)
        side.do(session.commit_transaction)
    commands = sent.named(command, "commitTransaction")
    begun = [each.get("startTransaction", False) for each in commands]
    assert begun[:6] == [True] * 6
    assert not any(begun[6:])
    assert len(numbers(commands)) == 1
    assert len(telemetry.decisions.events) == 5
    assert control[seeded].coll.count_documents({"_id": "then"}) == 1


@pytest.mark.parametrize("name", IN_TRANSACTION)
@pytest.mark.parametrize("fault", [CutBefore, CutAfter])
def test_nothing_else_is_repeated_in_a_transaction(
    name: str, fault: Any, side: Side, proxy: ReplicaSet, seeded: str, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000, **FAST)
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    command, call = IN_TRANSACTION[name]
    cut = fault(command, times=2)
    proxy.inject(cut)
    with transaction(side, client) as session:
        with pytest.raises(PyMongoError) as caught:
            call(side, client[seeded], session)
        side.do(session.abort_transaction)
    error = getattr(caught.value, "error", None) or caught.value
    assert isinstance(error, AutoReconnect)
    assert cut.injected == 1


def test_an_error_that_lets_the_transaction_be_repeated_is_not_hidden(
    side: Side, proxy: ReplicaSet, seeded: str, instrument: Instrument
) -> None:
    """The earlier error says more, but with_transaction would give up on it."""
    instrument(**FAST)
    looks: list[bool] = []

    def gate(servers: list[Any]) -> list[Any]:
        return servers if not looks or looks.pop(0) else []

    client = side.client(proxy.uri, server_selector=gate, serverSelectionTimeoutMS=500)
    wait_for_server(side, client)
    with transaction(side, client) as session:
        proxy.inject(Overload("insert"))
        looks.extend([True, *[False] * 100])
        with pytest.raises(PyMongoError) as caught:
            side.do(client[seeded].coll.insert_one, {}, session=session)
        looks.clear()
    assert isinstance(caught.value, ServerSelectionTimeoutError)
    assert caught.value.has_error_label(TRANSIENT)


def _committed(
    side: Side, uri: str, database: str, *faults: Fault, inject: Callable[[Fault], Any]
) -> list[Any]:
    """Every commitTransaction of one transaction with ``w=1``."""
    sent = SentCommands()
    client = side.client(uri, event_listeners=[sent])
    with transaction(side, client, write_concern=WriteConcern(1)) as session:
        side.do(client[database].coll.insert_one, {"_id": "in"}, session=session)
        for fault in faults:
            inject(fault)
        side.do(session.commit_transaction)
    return sent.named("commitTransaction")


COMMITS: dict[str, tuple[Callable[[], list[Fault]], list[Any]]] = {
    "overload": (lambda: [Overload("commitTransaction", times=5)], [1] * 6),
    "lost replies": (
        lambda: [CutAfter("commitTransaction", times=2)], [1, "majority", "majority"],
    ),
    "a lost reply, then overload": (
        lambda: [CutAfter("commitTransaction"), Overload("commitTransaction")],
        [1, "majority", "majority"],
    ),
    "a lost reply, then a cut handshake": (
        lambda: [CutAfter("commitTransaction"), CutAtHandshake()], [1, "majority"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_asks_for_a_majority_once_its_reply_was_lost(
    name: str, side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument
) -> None:
    """After an overload error nothing was executed, so nothing needs a majority. The driver's own
    loop would forget the lost reply: pymongo 4.20 asks for ``w=1`` again. A handshake that is cut
    counts as overload, and no commit was sent then."""
    instrument(timeout_ms=20_000, **FAST)
    faults, expected = COMMITS[name]
    commits = _committed(side, proxy.uri, seeded, *faults(), inject=proxy.inject)
    assert [each["writeConcern"]["w"] for each in commits] == expected
    assert len(numbers(commits)) == 1
    assert control[seeded].coll.count_documents({"_id": "in"}) == 1


def test_plain_pymongo_forgets_the_lost_reply(side: Side, proxy: ReplicaSet, seeded: str) -> None:
    # Pinned: once pymongo mends it, this fails, and driver.prepare_retry may set attempts to 0.
    faults = [CutAfter("commitTransaction"), Overload("commitTransaction")]
    commits = _committed(side, proxy.uri, seeded, *faults, inject=proxy.inject)
    assert [each["writeConcern"]["w"] for each in commits] == [1, "majority", 1]


@pytest.mark.parametrize("instrumented", [False, True], ids=["plain", "ours"])
def test_an_overloaded_abort_begins_nothing(
    instrumented: bool,
    side: Side,
    proxy: ReplicaSet,
    seeded: str,
    control: Any,
    instrument: Instrument,
) -> None:
    """The first command was executed and its reply lost: the transaction is open on the server.

    Pinned: the driver's own loop repeats the abort with ``startTransaction``. mongod refuses that,
    and the transaction stays open.
    """
    if instrumented:
        instrument(**FAST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    proxy.inject(CutAfter("insert"))
    proxy.inject(Overload("abortTransaction", times=2))
    with transaction(side, client) as session:
        with pytest.raises(AutoReconnect):
            side.do(client[seeded].coll.insert_one, {"_id": "in"}, session=session)
        side.do(session.abort_transaction)
    aborts = sent.named("abortTransaction")
    again = not instrumented
    assert ["startTransaction" in each for each in aborts] == [False, again, again]
    if instrumented:
        # Would wait for the transaction, or fail, while it is open.
        control[seeded].coll.insert_one({"_id": "in"})
    # Aborts whatever is still open: it would keep the database from being dropped.
    proxy.inject(Election(0.01)).result(5)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_commit_and_abort_are_repeated_whatever_the_client_says(
    end: str, side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument
) -> None:
    instrument(**FAST)
    sent = SentCommands()
    client = side.client(proxy.uri, event_listeners=[sent], retryWrites=False, retryReads=False)
    command = end.replace("_t", "T")
    proxy.inject(Overload(command, times=5))
    with transaction(side, client) as session:
        side.do(client[seeded].coll.insert_one, {"_id": "in"}, session=session)
        side.do(getattr(session, end))
    assert len(sent.named(command)) == 6
    assert len(numbers(sent.named(command))) == 1
    # Would wait for the transaction, or fail, while it is open.
    control[seeded].coll.insert_one({"_id": "after"})
    assert control[seeded].coll.count_documents({"_id": "in"}) == (end == "commit_transaction")


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_with_a_deadline_the_end_is_retried_whatever_the_budget_has_left(
    end: str, side: Side, proxy: ReplicaSet, seeded: str, control: Any, instrument: Instrument
) -> None:
    instrument(timeout_ms=20_000, **FAST)
    client = side.client(proxy.uri)
    coll = client[seeded].coll
    with transaction(side, client) as session:
        side.do(coll.insert_one, {"_id": "in"}, session=session)
        proxy.inject(Overload("insert", times=20))
        with pytest.raises(OperationFailure) as caught:
            side.do(coll.insert_one, {"_id": "rejected"}, session=session)
        assert not caught.value.has_error_label(TRANSIENT), "with_transaction must not start over"
        ended = Overload(end.replace("_t", "T"), times=12)
        proxy.inject(ended)
        side.do(getattr(session, end))
    assert ended.struck == 12
    # Would wait for the transaction, or fail, while it is open.
    control[seeded].coll.insert_one({"_id": "after"})
    assert control[seeded].coll.count_documents({"_id": "in"}) == (end == "commit_transaction")


def test_an_overloaded_first_write_leaves_its_router(
    side: Side, cluster: ShardedCluster, seeded: str, instrument: Instrument
) -> None:
    """A transaction is pinned to the router it began on: the retry may begin it on another one."""
    telemetry = instrument(**FAST)
    sent = SentCommands()
    client = side.client(cluster.uri, localThresholdMS=60_000, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    side.wait_for_members(client, len(cluster.members))
    cluster.inject(Overload("insert"))
    with transaction(side, client) as session:
        side.do(client[seeded].coll.insert_one, {"_id": "in"}, session=session)
        side.do(client[seeded].coll.insert_one, {"_id": "too"}, session=session)
        side.do(session.commit_transaction)
    (event,) = telemetry.decisions.events
    rejected, *rest = (
        each.connection_id
        for each in sent.started_events
        if each.command_name in {"insert", "commitTransaction"}
    )
    assert "{}:{}".format(*rejected) == event.server
    assert len(rest) == 3
    assert set(rest) == {member.address for member in cluster.members} - {rejected}


def run_with_transaction(side: Side, client: Any, database: str, **options: Any) -> int:
    """How often the callback of one ``with_transaction`` ran; it inserts one document."""
    runs = 0

    def synchronous(session: Any) -> None:
        nonlocal runs
        runs += 1
        client[database].coll.insert_one({"_id": "in"}, session=session)

    async def asynchronous(session: Any) -> None:
        nonlocal runs
        runs += 1
        await client[database].coll.insert_one({"_id": "in"}, session=session)

    session = client.start_session()
    try:
        callback = synchronous if side.runner is None else asynchronous
        side.do(session.with_transaction, callback, **options)
    finally:
        side.do(session.end_session)
    return runs


FAULTS: dict[str, tuple[Callable[[], list[Fault]], int, int, int]] = {
    # runs of the callback, inserts sent, commits sent
    "a transient error": (
        lambda: [Fail("insert", times=2, code=112, labels=[TRANSIENT])], 3, 3, 1,
    ),
    "a cut in the callback": (lambda: [CutBefore("insert")], 2, 2, 1),
    "not primary in the callback": (
        lambda: [Fail("insert", code=10107, labels=[TRANSIENT])], 2, 2, 1,
    ),
    "a commit that is cut": (lambda: [CutAfter("commitTransaction")], 1, 1, 2),
    "a commit that is cut for longer": (lambda: [CutAfter("commitTransaction", times=3)], 1, 1, 4),
    "a commit that is a transient error": (
        lambda: [Fail("commitTransaction", code=251, labels=[TRANSIENT])], 2, 2, 2,
    ),
    "a commit that a lock timeout aborted": (
        lambda: [Fail("commitTransaction", code=24, labels=[TRANSIENT])], 2, 2, 2,
    ),
    "a commit that a conflict aborted": (
        lambda: [Fail("commitTransaction", times=2, code=112, labels=[TRANSIENT])], 3, 3, 3,
    ),
    "a commit that is not primary": (
        lambda: [Fail("commitTransaction", code=10107, labels=["RetryableWriteError"])], 1, 1, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("options", [None, {}, {"timeout_ms": 20_000}], ids=str)
@pytest.mark.parametrize("name", FAULTS)
def test_with_transaction_keeps_the_driver_s_rules(
    name: str,
    options: dict[str, Any] | None,
    side: Side,
    proxy: ReplicaSet,
    seeded: str,
    control: Any,
    instrument: Instrument,
) -> None:
    """The same attempts as with plain pymongo: a retry of ours inside would be one too many."""
    telemetry = None if options is None else instrument(**options)
    sent = SentCommands()
    faults, runs, inserts, commits = FAULTS[name]
    client = side.client(proxy.uri, event_listeners=[sent])
    side.do(client.admin.command, "ping")
    for fault in faults():
        proxy.inject(fault)
    assert run_with_transaction(side, client, seeded) == runs
    assert len(sent.named("insert")) == inserts
    assert len(sent.named("commitTransaction")) == commits
    assert control[seeded].coll.count_documents({"_id": "in"}) == 1
    events = telemetry.decisions.events if telemetry else []
    repeated = {event.operation for event in events if isinstance(event, RetryScheduled)}
    assert repeated <= {"commitTransaction"}


def test_a_commit_whose_transaction_is_over_is_not_repeated_for_overload_either(
    side: Side, proxy: ReplicaSet, seeded: str, instrument: Instrument
) -> None:
    telemetry = instrument(timeout_ms=20_000)
    client = side.client(proxy.uri)
    side.do(client.admin.command, "ping")
    proxy.inject(Fail("commitTransaction", code=462, labels=[*OVERLOADED, TRANSIENT]))
    assert run_with_transaction(side, client, seeded) == 2
    assert [event.rule for event in telemetry.decisions.events] == [Rule.TRANSACTION_OVER]
