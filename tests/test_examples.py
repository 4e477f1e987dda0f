"""Every example runs as its reader would run it, against a real server that drops connections."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient
from support.clients import wait_until
from support.engines import RefuseNumbers, Throttle, ThrottleStatements
from support.otlp_collector import Collector

from pymongo_resilience.testbed import CutAfter, CutBefore, EmbeddedServer, Refuse, ReplicaSet, Slow

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("empty_shop")

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT = 60


def environment(proxy: ReplicaSet, **more: str) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "PYMONGO_RESILIENCE_"))
    }
    return {**inherited, "MONGODB_URI": proxy.uri, **more}


def run(example: str, proxy: ReplicaSet) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-P", str(EXAMPLES / example)],
        env=environment(proxy),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_none_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "change_consumer.py",
        "compatible_engine.py",
        "custom_strategy.py",
        "declared_commands.py",
        "kubernetes_probes.py",
        "quickstart_asyncio.py",
        "quickstart_sync.py",
        "request_deadlines.py",
        "resumable_scans.py",
        "slow_queries.py",
        "web_service.py",
    }


def test_quickstart_sync(proxy: ReplicaSet) -> None:
    proxy.inject(CutAfter("update", times=3))
    proxy.inject(CutBefore("find", times=2))

    done = run("quickstart_sync.py", proxy)

    assert done.stdout == "{'_id': 1, 'paid': True, 'visits': 1}\n"
    assert done.stderr.count("retrying in") == 5


def test_quickstart_asyncio(proxy: ReplicaSet) -> None:
    proxy.inject(CutAfter("update", times=3))

    done = run("quickstart_asyncio.py", proxy)

    assert done.stdout == "{'_id': 'visits', 'n': 20}\n"
    assert "retrying in" in done.stderr


def test_custom_strategy(proxy: ReplicaSet) -> None:
    proxy.inject(CutAfter("find", times=3))

    done = run("custom_strategy.py", proxy)

    assert done.stdout.splitlines() == [
        "find: socket_closed_while_in_flight, not again: strategy",
        "the robot is turned away: AutoReconnect",
        "find: socket_closed_while_in_flight, again in 0.02 s",
        "find: socket_closed_while_in_flight, again in 0.04 s",
        "the person sees {'_id': 'home', 'title': 'Welcome'}",
    ]


def test_slow_queries(proxy: ReplicaSet) -> None:
    done = run("slow_queries.py", proxy)

    sent, found = done.stdout.splitlines()
    assert re.fullmatch(r"GET /report has the trace [0-9a-f]{32}", sent)
    assert found == f"shop.orders (monthly report) belongs to the trace {sent.split()[-1]}"
    (logged,) = [line for line in done.stderr.splitlines() if "find shop.orders took" in line]
    assert logged.endswith(
        '; {"find": "orders", "filter": {"status": "?", "customer.?": "?"}, "comment": "?"}'
    )
    assert "john" not in done.stderr


def test_compatible_engine(proxy: ReplicaSet, server: EmbeddedServer) -> None:
    proxy.inject(RefuseNumbers())
    proxy.inject(ThrottleStatements("insert", server.address, [3], [1]))
    proxy.inject(CutAfter("update"))
    proxy.inject(Throttle("delete"))

    done = run("compatible_engine.py", proxy)

    stored = [
        {"_id": "order-1", "total": 1},
        {"_id": "order-2", "total": 2},
        {"_id": "order-3", "total": 3, "paid": True},
        {"_id": "order-4", "total": 4},
    ]
    waits = ["insert was throttled, waiting"] * 2 + ["delete was throttled, waiting"]
    assert done.stdout.splitlines() == [*waits, str(stored)]


def test_declared_commands(proxy: ReplicaSet) -> None:
    proxy.inject(CutBefore("ping"))
    proxy.inject(CutAfter("collStats"))
    proxy.inject(CutAfter("aggregate"))

    done = run("declared_commands.py", proxy)

    assert done.stdout.splitlines() == ["answers: True", "orders: 10", "paid orders: 5"]
    assert done.stderr.count("retrying in") == 3


def test_resumable_scans(proxy: ReplicaSet) -> None:
    proxy.inject(CutBefore("getMore", times=2))
    proxy.inject(CutAfter("getMore", times=2))

    done = run("resumable_scans.py", proxy)

    assert done.stdout.splitlines() == [
        "exported: 500 in order: True",
        "matched: 71",
        "largest: 6",
    ]
    assert done.stderr.count("retrying in") == 4


@contextmanager
def web_service(
    proxy: ReplicaSet, example: str = "web_service.py", **variables: str
) -> Iterator[int]:
    """The running service's port; it must end in good order when it is told to."""
    with subprocess.Popen(
        [sys.executable, "-P", str(EXAMPLES / example)],
        env=environment(proxy, PORT="0", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        guard = threading.Timer(TIMEOUT, process.kill)
        guard.start()
        try:
            assert process.stdout is not None
            said = re.search(r"listening on http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert said is not None
            yield int(said[1])
            process.send_signal(signal.SIGTERM)
            ended = process.wait()
            assert ended == (0 if example == "web_service.py" else -signal.SIGTERM)
        finally:
            process.kill()
            guard.cancel()


def ask(
    port: int, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_web_service_survives_lost_replies_and_shows_them(
    proxy: ReplicaSet, collector: Collector
) -> None:
    with web_service(proxy, OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint) as port:
        proxy.inject(CutAfter("update", times=2))
        assert ask(port, "PUT", "/orders/1", '{"total": 12}') == (200, '{"stored": "1"}')
        assert ask(port, "GET", "/orders/1") == (200, '{"_id": "1", "total": 12}')

    assert collector.spans().count(("PUT /orders/{id}", "update shop.orders")) == 1
    assert collector.spans().count(("update shop.orders", "update")) == 3
    assert collector.spans().count(("GET /orders/{id}", "find shop.orders")) == 1
    assert ("find shop.orders", "find") not in collector.spans()  # healthy: one span
    assert {"db.client.operation.duration", "pymongo_resilience.retries"} <= collector.metrics


def test_web_service_answers_its_mistakes_and_its_database_s(proxy: ReplicaSet) -> None:
    # Its client is closed without a server, and waits for one as long as this says.
    uri = f"{proxy.uri}&serverSelectionTimeoutMS=1000"
    with web_service(proxy, MONGODB_URI=uri) as port:
        assert ask(port, "GET", "/orders/none")[0] == 404
        assert ask(port, "GET", "/elsewhere")[0] == 404
        assert ask(port, "PUT", "/orders/1", "no object")[0] == 400
        assert ask(port, "PUT", "/orders/1", "[]")[0] == 400
        proxy.inject(Refuse(3600))
        assert ask(port, "GET", "/orders/1")[0] in {503, 504}


def test_request_deadlines(proxy: ReplicaSet) -> None:
    with web_service(proxy, "request_deadlines.py") as port:
        header = "x-request-timeout-ms"
        assert ask(port, "GET", "/orders", **{header: "20000"}) == (200, "0 orders\n")
        assert ask(port, "GET", "/orders", **{header: "soon"}) == (200, "0 orders\n")
        assert ask(port, "GET", "/orders", **{header: "0"})[0] == 504
        proxy.inject(Slow(10))
        began = time.monotonic()
        assert ask(port, "GET", "/orders", **{header: "300"}) == (504, "no answer within 0.3 s\n")
        assert time.monotonic() - began < 3


def test_kubernetes_probes(proxy: ReplicaSet) -> None:
    with web_service(proxy, "kubernetes_probes.py") as port:
        assert ask(port, "GET", "/livez")[0] == 200
        wait_until(lambda: ask(port, "GET", "/readyz")[0] == 200)
        proxy.inject(Refuse(3600))
        wait_until(lambda: "nothing listens" in ask(port, "GET", "/readyz")[1])
        assert ask(port, "GET", "/readyz")[0] == 200, "within the grace period"
        assert ask(port, "GET", "/livez")[0] == 200


def test_change_consumer(proxy: ReplicaSet, server: EmbeddedServer) -> None:
    with MongoClient[Any](server.uri) as client:
        shop = client.shop
        for name in ("orders", "customers", "tokens"):
            shop.create_collection(name)

        def counted() -> int:
            found = shop.customers.find_one({"_id": "ada"})
            return 0 if found is None else int(found["orders"])

        for kill in (True, False):
            with subprocess.Popen(
                [sys.executable, "-P", str(EXAMPLES / "change_consumer.py")],
                env=environment(proxy),
                stderr=subprocess.DEVNULL,
            ) as process:
                wait_until(shop.tokens.find_one, timeout=TIMEOUT)
                proxy.inject(CutAfter("commitTransaction", times=2))
                before = shop.orders.count_documents({})
                shop.orders.insert_many([{"customer": "ada"} for _ in range(5)])
                wait_until(lambda count=before: counted() == count + 5, timeout=TIMEOUT)
                process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
                assert process.wait() == (-signal.SIGKILL if kill else 0)
                shop.orders.insert_one({"customer": "ada"})
