"""How long an operation takes to fail where no waiting helps, with plain pymongo and the library.

    python bench/fail_fast.py [SERVER_SELECTION_TIMEOUT_S]

Each trouble has a client of its own, and all of them wait at the same time, sync and async. Those
at the end of the table may pass by themselves, so both wait. Needs the extra ``dev``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import ssl
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymongo
import trustme
from pymongo.errors import PyMongoError
from rich.console import Console
from rich.table import Table

from pymongo_resilience import Config, instrument, uninstrument
from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support import fake_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Config(metrics=False, traces=False)
USER, PASSWORD = "root", "only-for-the-bench"
ASYNC = (False, True)


@dataclass
class Trouble:
    """What a client meets; ``before`` is how many operations have failed of it already."""

    name: str
    uri: str
    options: dict[str, Any] = field(default_factory=dict)
    before: int = 0


@contextlib.contextmanager
def troubles(directory: str) -> Iterator[list[Trouble]]:
    authority = trustme.CA()
    file = str(Path(directory) / "authority.pem")
    authority.cert_pem.write_to_path(file)
    tls = {"tls": True, "tlsCAFile": file}
    with contextlib.ExitStack() as running:
        server = running.enter_context(EmbeddedServer())
        locked = running.enter_context(EmbeddedServer(user=USER, password=PASSWORD))
        members = running.enter_context(ReplicaSet(server.address))
        guarded = running.enter_context(ReplicaSet(locked.address, members=1))

        def peer(behave: fake_servers.Behaviour) -> str:
            return running.enter_context(fake_servers.Peer(behave)).uri

        def behind(certificate: trustme.LeafCert) -> str:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(context)
            return peer(fake_servers.with_tls(server.address, context))

        host, port = members.address
        other = f"mongodb://{host}:{port}/?replicaSet=other"
        wrong = {"username": USER, "password": "wrong"}
        yield [
            Trouble("unknown authority", behind(trustme.CA().issue_cert("127.0.0.1")), tls),
            Trouble("another host's", behind(authority.issue_cert("db.example.org")), tls),
            Trouble("no TLS, answers", peer(fake_servers.answers_in_plain_text), tls),
            Trouble("another set", other),
            Trouble("another set, directly", f"{other}&directConnection=true"),
            Trouble("wrong password", guarded.uri, wrong),
            Trouble("wrong password, again", guarded.uri, wrong, before=2),
            Trouble("no TLS, hangs up", peer(fake_servers.hangs_up), tls),
            Trouble("refused", "mongodb://127.0.0.1:1/"),
        ]


def fails(trouble: Trouble, selection_ms: int, *, asynchronous: bool) -> tuple[float, str]:
    """Seconds, and the first words of the error."""
    options = {"serverSelectionTimeoutMS": selection_ms, **trouble.options}
    if asynchronous:
        return asyncio.run(_fails_async(trouble, options))
    client: Any = pymongo.MongoClient(trouble.uri, **options)
    with client:
        for _ in range(trouble.before):
            with contextlib.suppress(PyMongoError):
                client.bench.coll.find_one()
        began = time.perf_counter()
        try:
            client.bench.coll.find_one()
        except PyMongoError as error:
            return time.perf_counter() - began, _words(error)
    raise AssertionError(f"{trouble.name}: it did not fail")


async def _fails_async(trouble: Trouble, options: dict[str, Any]) -> tuple[float, str]:
    async with pymongo.AsyncMongoClient(trouble.uri, **options) as client:
        for _ in range(trouble.before):
            with contextlib.suppress(PyMongoError):
                await client.bench.coll.find_one()
        began = time.perf_counter()
        try:
            await client.bench.coll.find_one()
        except PyMongoError as error:
            return time.perf_counter() - began, _words(error)
    raise AssertionError(f"{trouble.name}: it did not fail")


def _words(error: PyMongoError) -> str:
    return f"{type(error).__name__}: {error}"[:150]


def measure(met: list[Trouble], selection_ms: int) -> list[tuple[float, str]]:
    """For each trouble in turn: sync, then async."""
    with ThreadPoolExecutor(len(ASYNC) * len(met)) as threads:
        waiting = [
            threads.submit(fails, trouble, selection_ms, asynchronous=asynchronous)
            for trouble in met
            for asynchronous in ASYNC
        ]
        return [each.result() for each in waiting]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "seconds", nargs="?", type=float, default=30.0, help="serverSelectionTimeoutMS, in seconds"
    )
    seconds = parser.parse_args().seconds
    # A test bed tells of each connection that is not what it should be.
    logging.disable(logging.ERROR)
    made = Table(title=f"seconds until it fails, pymongo {pymongo.version}", show_lines=True)
    made.add_column("")
    for heading in ("plain, sync", "plain, async", "ours, sync", "ours, async"):
        made.add_column(heading, justify="right")
    made.add_column("ours says")
    with tempfile.TemporaryDirectory() as directory, troubles(directory) as met:
        plain = measure(met, round(seconds * 1000))
        instrument(CONFIG)
        ours = measure(met, round(seconds * 1000))
        uninstrument()
    for index, trouble in enumerate(met):
        both = slice(2 * index, 2 * index + 2)
        took = [f"{each:.2f}" for each, _ in plain[both] + ours[both]]
        made.add_row(trouble.name, *took, ours[2 * index][1])
    Console(width=120).print(made)
    print("load average", *(f"{each:.2f}" for each in os.getloadavg()))


if __name__ == "__main__":
    main()
