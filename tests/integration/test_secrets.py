"""No credential, document value or query value leaves in a span, metric, log line, ``repr`` or
standard error.

Everything the library wraps runs once on each side, on a server with access control, with canaries
wherever a value can be; then all that the library showed is searched for them. What is a name is no
secret, and shown: of databases, collections and commands (SECURITY.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation import public_operations
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support import canary_failures, canary_retries
from support.canaries import MARK, PASSWORD, USER, leaks, matching
from support.canary_operations import BESIDE, NOT_ON_THIS_SERVER
from support.canary_outputs import Outputs, instrumented
from support.clients import SentCommands, Side, fail_command
from support.every_operation import BY_CLASS, Scene

from pymongo_resilience import OperationTimeoutError

CHANNELS = ("spans", "metrics", "log", "reprs", "warnings", "standard error")
TABLES = {
    "Collection": public_operations.COLLECTION,
    "Database": public_operations.DATABASE,
    "MongoClient": public_operations.CLIENT,
}


@dataclass
class Run:
    """What was done, and what the library showed of it."""

    done: dict[str, set[str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    surprises: list[str] = field(default_factory=list)
    channels: dict[str, list[str]] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    drawn: set[str] = field(default_factory=set)
    """Commands by name: those the driver told of, and those with a span."""


@pytest.fixture(scope="module")
def vault() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(user=USER, password=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def keeper(vault: EmbeddedServer) -> Iterator[pymongo.MongoClient[Any]]:
    """Arms the failpoints of the server with access control."""
    with pymongo.MongoClient(vault.uri, appname="control") as client:
        yield client


@pytest.fixture(scope="module", params=["sync", "async"])
def ran(request: pytest.FixtureRequest, vault: EmbeddedServer, keeper: Any) -> Run:
    """Everything, once: instrumented before the first client, taken off before the first check."""
    side = Side(request.param, asyncio.Runner() if request.param == "async" else None)
    run = Run()
    try:
        with instrumented() as outputs:
            sent = SentCommands()
            client = side.do(side.client, vault.uri, event_listeners=[sent])
            place = Scene(side, vault.uri, client, f"vault_{side.name}")
            outputs.reprs.update(map(repr, (client, place.db, place.coll)))
            place.prepare()
            _operations(run, place, outputs)
            canary_failures.prepare(place)
            _beside(run, place, sent)
            _failures(run, place)
            _troubles(run, place, outputs, keeper)
            _refusals(run, place, outputs, vault)
            if side.name == "async":
                _cancellation(run, place, keeper)
            run.sent = {event.command_name for event in sent.started_events}
        run.channels = outputs.channels()
        run.drawn = {str(span.attributes.get("db.command.name")) for span in outputs.spans()}
    finally:
        side.close()
    return run


def _operations(run: Run, place: Scene, outputs: Outputs) -> None:
    """An operation counts as done once its span is there, under the name the library has for it."""
    for owner, table in TABLES.items():
        run.done[owner] = set()
        for operation in BY_CLASS[owner]:
            method = operation.name.partition(" with ")[0]
            before = len(outputs.spans())
            try:
                operation.call(place)
            except pymongo.errors.OperationFailure:
                run.refused.add(method)
            drawn = {span.attributes.get("db.operation.name") for span in outputs.spans()[before:]}
            if method in table and table[method].name in drawn:
                run.done[owner].add(method)


def _beside(run: Run, place: Scene, sent: SentCommands) -> None:
    for name, (call, command) in BESIDE.items():
        before = len(sent.named(command))
        call(place)
        if len(sent.named(command)) > before:
            run.beside.add(name)


def _failures(run: Run, place: Scene) -> None:
    for name, failure in canary_failures.FAILURES.items():
        try:
            failure.call(place)
        except Exception as error:  # noqa: BLE001 - compared, whatever it is
            as_expected = (type(error), getattr(error, "code", None), MARK in str(error))
            if as_expected != (failure.kind, failure.code, failure.quotes):
                run.surprises.append(f"{name}: {error!r}")
        else:
            run.surprises.append(f"{name}: no failure")


def _troubles(run: Run, place: Scene, outputs: Outputs, keeper: Any) -> None:
    for name, trouble in canary_retries.TROUBLES.items():
        outputs.events.clear()
        ended: BaseException | None = None
        try:
            canary_retries.provoke(place, keeper, trouble)
        except Exception as error:  # noqa: BLE001 - compared, whatever it is
            ended = error
        reason = outputs.events[0].reason if outputs.events else None
        kind = type(None) if trouble.kind is None else trouble.kind
        if not isinstance(ended, kind) or (MARK in str(ended)) != trouble.quotes:
            run.surprises.append(f"{name}: {ended!r}")
        elif reason is not trouble.reason:
            run.surprises.append(f"{name}: {reason}")
        elif isinstance(ended, OperationTimeoutError):
            own_words = str(ended).replace(str(ended.__cause__), "")
            run.surprises += leaks(name, [own_words])


def _refusals(run: Run, place: Scene, outputs: Outputs, vault: EmbeddedServer) -> None:
    for name, client in canary_retries.refused_clients(place, vault.address).items():
        outputs.reprs.add(repr(client))
        code = 13 if name == "no credentials" else 18
        for _ in range(2):
            try:
                place.do(client.db.coll.find_one, matching("a refused read"))
            except pymongo.errors.OperationFailure as error:
                if error.code != code:
                    run.surprises.append(f"{name}: {error!r}")
            else:
                run.surprises.append(f"{name}: let in")


def _cancellation(run: Run, place: Scene, keeper: Any) -> None:
    async def cancelled() -> None:
        async with asyncio.timeout(0.05):
            await place.coll.find_one(matching("a cancelled read"))

    with fail_command(keeper, "find", blockConnection=True, blockTimeMS=5000, times=1):
        try:
            place.do(cancelled)
        except TimeoutError:
            return
    run.surprises.append("not cancelled")


@pytest.mark.needs_server("8.0")  # the client's bulk_write
@pytest.mark.parametrize("owner", TABLES)
def test_every_operation_the_library_wraps_was_done(ran: Run, owner: str) -> None:
    assert ran.done[owner] == set(TABLES[owner])


@pytest.mark.needs_secantus("what an older mongod lacks differs by its version")
def test_the_server_refused_only_what_it_does_not_have(ran: Run) -> None:
    assert ran.refused == NOT_ON_THIS_SERVER


def test_what_enters_the_driver_in_other_ways_was_done(ran: Run) -> None:
    assert ran.beside == set(BESIDE)


def test_commands_with_credentials_have_no_span(ran: Run) -> None:
    # Of a hello, which carries what saslStart would, the driver itself tells nobody.
    assert ran.sent - ran.drawn == {"saslContinue", "createUser", "updateUser"}


def test_every_failure_was_provoked_and_the_application_got_the_servers_text(ran: Run) -> None:
    assert ran.surprises == []


@pytest.mark.parametrize("channel", CHANNELS)
def test_no_canary_left(ran: Run, channel: str) -> None:
    assert leaks(channel, ran.channels[channel]) == []
