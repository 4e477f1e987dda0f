"""One run: a workload through a scenario, on one side of pymongo, and its balance."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pymongo
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from support.chaos.ledger import ACCOUNTS, ATOMIC, Balance, Kind, found_in
from support.chaos.lengths import SEED
from support.chaos.residue import OpenSpans
from support.chaos.workload import (
    DATABASE,
    DEADLINE,
    Author,
    Journal,
    accounts_of,
    outcome_of_the_last_span,
    run_tasks,
    run_threads,
)

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testbed import (
    EmbeddedServer,
    RealReplicaSet,
    ReplicaSet,
    Scenario,
    Standalone,
)

OPEN_SPANS: Final = OpenSpans()
THREADS: Final = 8
TASKS: Final = 200
CLIENT: Final = {
    # Not shorter: 200 tasks keep one event loop busy for so long that a hello of a healthy member
    # seems to be late, and the driver clears the pool again and again.
    "connectTimeoutMS": 5000,
    "heartbeatFrequencyMS": 1000,
    # Everybody has a connection, and they are made again quickly after they were reset: who waits
    # for one in pymongo's asynchronous pool is overtaken by whoever returns one and takes it back.
    "maxPoolSize": 250,
    "maxConnecting": 16,
}


class Api(StrEnum):
    """Which of pymongo's two interfaces, and how many use it at once."""

    THREADS = "8 threads"
    TASKS = "200 tasks"


class Topology(StrEnum):
    """What stands in front of the server."""

    REPLICA_SET = "replica set"
    STANDALONE = "standalone"
    REAL_SET = "real set"

    @contextlib.contextmanager
    def served(self) -> Iterator[tuple[ReplicaSet | Standalone, str]]:
        """The deployment, and the URI of its server past all faults."""
        if self is Topology.REAL_SET:
            with RealReplicaSet() as members:
                yield members, members.uri
            return
        kind = ReplicaSet if self is Topology.REPLICA_SET else Standalone
        with EmbeddedServer() as server, kind(server.address) as deployment:
            yield deployment, server.uri

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What can be written there: a standalone knows no transactions."""
        ordinary = tuple(kind for kind in Kind if kind not in ATOMIC)
        if self is Topology.STANDALONE:
            return tuple(kind for kind in ordinary if kind is not Kind.TRANSACTION)
        return ordinary


@dataclass
class Result:
    """What came of one run."""

    journal: Journal
    balance: Balance
    faults: dict[str, int]
    """How often each kind acted: a black hole counts every message it swallows."""
    repeats: int
    """Writes that reached the server again after it had executed them."""
    recovery: float | None
    """Seconds from the last election to the end of the last operation that had waited for it."""

    def __str__(self) -> str:
        balance, journal = self.balance, self.journal
        found = {"lost": balance.lost, "doubled": balance.doubled, "torn": balance.torn}
        found |= {"unknown": balance.unknown, "wrong": journal.wrong}
        counts = ", ".join(f"{len(names)} {kind}" for kind, names in found.items())
        longest = max(journal.durations, default=0.0)
        return (
            f"{len(journal.ledger)} operations, {counts}, {self.repeats} repeats, longest "
            f"{longest:.1f} s; faults {dict(self.faults)}; errors {dict(journal.errors)}"
        )


class Outcomes(SpanProcessor):
    """Tells the workload how its last operation ended, in the thread or task that ran it."""

    def on_end(self, span: ReadableSpan) -> None:
        attributes = span.attributes or {}
        outcome = attributes.get("pymongo_resilience.outcome")
        # A transaction's span, which names no operation, says what became of all of it. The client
        # is closed in the thread of the test, which writes nothing.
        if outcome is not None and attributes.get("db.operation.name") not in {None, "endSessions"}:
            outcome_of_the_last_span.set(str(outcome))


@contextlib.contextmanager
def instrumented() -> Iterator[None]:
    tracer_provider = TracerProvider(shutdown_on_exit=False)
    tracer_provider.add_span_processor(Outcomes())
    tracer_provider.add_span_processor(OPEN_SPANS)
    pymongo_resilience.instrument(
        Config(timeout_ms=int(DEADLINE * 1000)),
        tracer_provider=tracer_provider,
        meter_provider=MeterProvider(shutdown_on_exit=False),
    )
    try:
        yield
    finally:
        pymongo_resilience.uninstrument()


def run(
    api: Api,
    scenario: Scenario,
    *,
    seconds: float,
    topology: Topology = Topology.REPLICA_SET,
    kinds: Sequence[Kind] | None = None,
    client_options: Mapping[str, Any] | None = None,
) -> Result:
    """Play the scenario while the workload writes, then compare; on a server of its own."""
    name, count = ("thread", THREADS) if api is Api.THREADS else ("task", TASKS)
    kinds = topology.kinds if kinds is None else kinds
    authors = [Author(f"{name}-{number}", SEED, kinds) for number in range(count)]
    journal = Journal()
    with topology.served() as (servers, uri):
        if set(kinds) & set(ATOMIC):
            with pymongo.MongoClient[Any](uri) as direct:
                accounts = [each for author in authors for each in accounts_of(author.name)]
                direct[DATABASE][ACCOUNTS].insert_many(accounts)
                direct[DATABASE][ACCOUNTS].create_index("group")
        with instrumented():
            options = {**CLIENT, **(client_options or {})}
            played = servers.play(scenario)
            if api is Api.THREADS:
                with pymongo.MongoClient[Any](servers.uri, **options) as client:
                    run_threads(client, authors, seconds=seconds, journal=journal)
            else:
                asyncio.run(_tasks(servers.uri, options, authors, seconds, journal))
            played.result(timeout=seconds)
            faults, repeats = servers.injected(), servers.repeats
            recovery = None
            if isinstance(servers, ReplicaSet):
                recovery = _recovery(journal, servers.elected_at)
            # Nothing that was held back arrives any more.
            servers.clear()
        with pymongo.MongoClient[Any](uri) as direct:
            balance = journal.ledger.balance(found_in(direct[DATABASE]))
    return Result(journal, balance, dict(faults), repeats, recovery)


def _recovery(journal: Journal, elected_at: float) -> float | None:
    waited = [ended - elected_at for began, ended in journal.spans if began < elected_at < ended]
    return max(waited, default=None)


async def _tasks(
    uri: str,
    options: dict[str, Any],
    authors: Sequence[Author],
    seconds: float,
    journal: Journal,
) -> None:
    async with pymongo.AsyncMongoClient[Any](uri, **options) as client:
        await run_tasks(client, authors, seconds=seconds, seed=SEED, journal=journal)
