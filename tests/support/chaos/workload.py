"""Threads and tasks that write, and tell the ledger what was acknowledged."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import pymongo
from pymongo import InsertOne, ReturnDocument, UpdateMany, UpdateOne
from support.chaos.ledger import ACCOUNTS, ATOMIC, DOCUMENTS, GROUP, Kind, Ledger, Operation

from pymongo_resilience import override

DATABASE: Final = "chaos"
DEADLINE: Final = 20.0
LONGEST_PAUSE: Final = 4.0
"""Seconds that a task has other things to do between two operations; half of it on average."""
_OPERATIONS_PER_ACCOUNT: Final = 50
GROUPS: Final = 4
"""Of each author; one follows the other."""

outcome_of_the_last_span: ContextVar[str | None] = ContextVar("outcome", default=None)
"""Set by whoever listens to spans; ``None`` where nobody does."""


class WrongResultError(Exception):
    """An operation was acknowledged, with a result that it cannot have had."""


@dataclass
class Journal:
    """What a run left behind, besides the ledger. Thread-safe enough: appends and one lock."""

    ledger: Ledger = field(default_factory=Ledger)
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When each operation began and ended, on the monotonic clock."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors that reached the application, by outcome and type."""
    wrong: list[str] = field(default_factory=list)
    """Operations that were acknowledged with a result that they cannot have had."""
    samples: list[str] = field(default_factory=list)
    """The texts of the first few errors."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def durations(self) -> list[float]:
        """Seconds of each operation."""
        return [ended - began for began, ended in self.spans]

    def done(self, operation: Operation, started: float) -> None:
        """The operation was acknowledged."""
        self.spans.append((started, time.monotonic()))
        self.ledger.acknowledged.append(operation)

    def failed(self, operation: Operation, started: float, error: Exception) -> None:
        """The operation raised; a wrong result is an acknowledgement all the same."""
        if isinstance(error, WrongResultError):
            self.wrong.append(f"{operation.name} ({operation.kind}): {error}")
            self.done(operation, started)
            return
        ended = time.monotonic()
        self.spans.append((started, ended))
        self.ledger.raised.append(operation)
        with self._lock:
            self.errors[f"{_outcome(error, ended - started)}: {_name(error)}"] += 1
            if len(self.samples) < 20:
                self.samples.append(f"{operation.name} ({operation.kind}): {error!r}"[:600])


def _name(error: Exception) -> str:
    code = getattr(error, "code", None)
    return type(error).__name__ + (f" {code}" if code else "")


def _outcome(error: Exception, seconds: float) -> str:
    """As the last span says, if it failed; a commit has none, so its error must speak for itself.

    Whatever it says, no deadline has passed long before it.
    """
    outcome = outcome_of_the_last_span.get()
    if outcome is None:
        return "plain"
    late = seconds >= 0.9 * DEADLINE
    if outcome == "deadline" or getattr(error, "timeout", False) or late:
        return "deadline" if late else f"deadline after {seconds:.1f} s"
    if outcome not in {"ok", "retried_ok"}:
        return outcome
    overloaded = isinstance(error, pymongo.errors.PyMongoError) and error.has_error_label(
        "SystemOverloadedError"
    )
    return "attempts_exhausted" if overloaded else "not_retryable"


class Author:
    """Thinks of operations: the same ones for the same name and seed."""

    def __init__(self, name: str, seed: int, kinds: Sequence[Kind]) -> None:
        self.name = name
        self._kinds = kinds
        self._rng = random.Random(f"{seed}/{name}")  # noqa: S311 (random choices, not secrets)
        self._count = 0

    def next(self) -> Operation:
        """One more operation."""
        kind = self._rng.choice(self._kinds)
        number = self._count
        self._count += 1
        account = f"{self.name}-{number // _OPERATIONS_PER_ACCOUNT}"
        return Operation(kind, f"{self.name}-{number}", account)


Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _counting(effect: str) -> dict[str, Any]:
    return {"$inc": {"count": 1}, "$push": {"effects": effect}}


def _inserted(operation: Operation, part: str) -> dict[str, Any]:
    return {"effect": operation.effect(part)}


def _insert(database: Any, operation: Operation) -> Call:
    return database[DOCUMENTS].insert_one, (_inserted(operation, "inserted"),), {}


def _update(database: Any, operation: Operation) -> Call:
    change = _counting(operation.effect("updated"))
    return database[ACCOUNTS].update_one, ({"_id": operation.account}, change), {"upsert": True}


def _find_and_modify(database: Any, operation: Operation) -> Call:
    change = _counting(operation.effect("modified"))
    options = {"upsert": True, "return_document": ReturnDocument.AFTER}
    return database[ACCOUNTS].find_one_and_update, ({"_id": operation.account}, change), options


def _bulk(database: Any, operation: Operation) -> Call:
    # A bulk write of one collection: its documents and its account live side by side.
    requests = [
        InsertOne(_account_of_one(operation, "first")),
        UpdateOne({"_id": operation.account}, _counting(operation.effect("updated")), upsert=True),
        InsertOne(_account_of_one(operation, "second")),
    ]
    return database[ACCOUNTS].bulk_write, (requests,), {}


def _account_of_one(operation: Operation, part: str) -> dict[str, Any]:
    return {"count": 1, "effects": [operation.effect(part)]}


def _read(database: Any, operation: Operation) -> Call:
    return database[ACCOUNTS].find_one, ({"_id": operation.account},), {}


def accounts_of(name: str) -> list[dict[str, Any]]:
    """The groups of one author, which are there before its first operation."""
    return [
        {"group": f"{name}-{number}", "part": part, "count": 0, "effects": []}
        for number in range(GROUPS)
        for part in GROUP
    ]


def _group_of(operation: Operation) -> str:
    author, _, number = operation.account.rpartition("-")
    return f"{author}-{int(number) % GROUPS}"


def _atomic_update(database: Any, operation: Operation) -> Call:
    change = _counting(operation.name)
    return database[ACCOUNTS].update_many, ({"group": _group_of(operation)}, change), {}


def _atomic_bulk(database: Any, operation: Operation) -> Call:
    requests = [
        InsertOne(_account_of_one(operation, "inserted")),
        UpdateMany({"group": _group_of(operation)}, _counting(operation.name)),
    ]
    return database[ACCOUNTS].bulk_write, (requests,), {}


CALLS: Final[dict[Kind, Callable[[Any, Operation], Call]]] = {
    Kind.INSERT: _insert,
    Kind.UPDATE: _update,
    Kind.FIND_AND_MODIFY: _find_and_modify,
    Kind.BULK: _bulk,
    Kind.READ: _read,
    Kind.ATOMIC_UPDATE: _atomic_update,
    Kind.ATOMIC_BULK: _atomic_bulk,
}
_IN_TRANSACTION: Final = (_insert, _update)


def check(operation: Operation, result: Any) -> None:
    """Raises :class:`WrongResultError` where the result is not that of the operation, once."""
    match operation.kind:
        case Kind.INSERT:
            right = result.inserted_id is not None
        case Kind.UPDATE:
            right = result.matched_count + (result.upserted_id is not None) == 1
        case Kind.FIND_AND_MODIFY:
            right = result is not None and operation.effects[0] in result["effects"]
        case Kind.BULK:
            updated = result.matched_count + result.upserted_count
            right = (result.inserted_count, updated) == (2, 1)
        case Kind.ATOMIC_UPDATE:
            right = (result.matched_count, result.modified_count) == (3, 3)
        case Kind.ATOMIC_BULK:
            right = (result.inserted_count, result.modified_count) == (1, 3)
        case _:
            right = True
    if not right:
        raise WrongResultError(repr(result)[:300])


def write(client: Any, operation: Operation) -> None:
    """Run the operation with a client of the synchronous API."""
    database = client[DATABASE]
    if operation.kind is not Kind.TRANSACTION:
        function, arguments, options = CALLS[operation.kind](database, operation)
        with override(atomic=operation.kind in ATOMIC):
            check(operation, function(*arguments, **options))
        return

    def transaction(session: Any) -> None:
        for make in _IN_TRANSACTION:
            function, arguments, options = make(database, operation)
            function(*arguments, **options, session=session)

    with pymongo.timeout(DEADLINE), client.start_session() as session:
        session.with_transaction(transaction)


async def write_async(client: Any, operation: Operation) -> None:
    """Run the operation with a client of the asynchronous API."""
    database = client[DATABASE]
    if operation.kind is not Kind.TRANSACTION:
        function, arguments, options = CALLS[operation.kind](database, operation)
        with override(atomic=operation.kind in ATOMIC):
            check(operation, await function(*arguments, **options))
        return

    async def transaction(session: Any) -> None:
        for make in _IN_TRANSACTION:
            function, arguments, options = make(database, operation)
            await function(*arguments, **options, session=session)

    with pymongo.timeout(DEADLINE):
        async with client.start_session() as session:
            await session.with_transaction(transaction)


def run_threads(
    client: pymongo.MongoClient[Any],
    authors: Sequence[Author],
    *,
    seconds: float,
    journal: Journal,
) -> None:
    """Each author writes in a thread until the time is up; returns when the last has finished."""
    end = time.monotonic() + seconds

    def work(author: Author) -> None:
        while time.monotonic() < end:
            operation = author.next()
            started = time.monotonic()
            try:
                write(client, operation)
            except Exception as error:  # noqa: BLE001 (whatever an application would see)
                journal.failed(operation, started, error)
            else:
                journal.done(operation, started)

    workers = [threading.Thread(target=work, args=(author,)) for author in authors]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


async def run_tasks(
    client: pymongo.AsyncMongoClient[Any],
    authors: Sequence[Author],
    *,
    seconds: float,
    seed: int,
    journal: Journal,
) -> None:
    """Each author writes in a task until the time is up; returns when the last has finished."""
    end = time.monotonic() + seconds

    async def work(author: Author) -> None:
        pauses = random.Random(f"{seed}/{author.name}/pauses")  # noqa: S311 (random choices, not secrets)
        while time.monotonic() < end:
            operation = author.next()
            started = time.monotonic()
            try:
                await write_async(client, operation)
            except Exception as error:  # noqa: BLE001 (whatever an application would see)
                journal.failed(operation, started, error)
            else:
                journal.done(operation, started)
            # As an application does between two operations. Without it, a connection that was
            # returned is taken again before those who wait for it have their turn, and 200 tasks
            # ask for twice what the server can do: the longest then waits for the whole deadline
            # behind the others, with or without faults.
            await asyncio.sleep(min(pauses.uniform(0, LONGEST_PAUSE), max(0.0, end - started)))

    async with asyncio.TaskGroup() as group:
        for author in authors:
            group.create_task(work(author))
