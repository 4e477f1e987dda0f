"""examples/frameworks: each runs as its reader runs it, loses replies, and shows the retries.

Needs examples/frameworks/requirements.txt: `make examples`, in an environment of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from pymongo import MongoClient
from support.free_ports import consecutive_free_ports
from support.otlp_collector import Collector

from pymongo_resilience.testbed import CutAfter, EmbeddedServer, ReplicaSet, Reset, Slow

pytestmark = pytest.mark.usefixtures("empty_shop")

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
BIN = Path(sys.executable).parent
TIMEOUT = 60
CUTS = 3
"""More than the driver's one retry mends."""


@contextmanager
def running(
    proxy: ReplicaSet, collector: Collector, *command: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Ends it as a platform does: SIGTERM to it alone, and some seconds to send what it has."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "PYMONGO_RESILIENCE_"))
    }
    told = {
        "PATH": f"{BIN}:{inherited['PATH']}",
        "MONGODB_URI": proxy.uri,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    with subprocess.Popen(
        [str(BIN / command[0]), *command[1:]],
        cwd=EXAMPLES,
        env={**inherited, **told, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        guard = threading.Timer(TIMEOUT, process.kill)
        guard.start()
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate()
        finally:
            process.kill()
            guard.cancel()


def check_retried(
    collector: Collector, operation: str = "insert shop.orders", stale: int = 0, operations: int = 1
) -> None:
    """One operation, and below it all its attempts; ``stale`` more where connections were reset."""
    spans = collector.spans()
    assert [name for _, name in spans].count(operation) == operations, spans
    attempts = spans.count((operation, operation.split(maxsplit=1)[0]))
    assert CUTS + 1 <= attempts <= CUTS + 1 + stale, spans
    assert "pymongo_resilience.retries" in collector.metrics


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + TIMEOUT / 2
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def post(port: int, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("POST", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        is_json = response.getheader("content-type") == "application/json"
        return response.status, json.loads(body) if is_json or path == "/" else body.decode()
    finally:
        connection.close()


def listens(port: int) -> bool:
    try:
        post(port, "/")
    except ConnectionError:
        return False
    except ValueError:  # no JSON, but an answer
        pass
    return True


SERVERS = {
    "fastapi": ("uvicorn", "fastapi_beanie:app", "--port"),
    "fastapi, switched on twice": (
        *("opentelemetry-instrument", "uvicorn", "fastapi_beanie:app", "--port"),
    ),
    "fastapi, pymongo alone": ("uvicorn", "fastapi_pymongo:app", "--port"),
    "flask": (
        *("gunicorn", "--preload", "--workers", "2", "--config", "python:flask_mongoengine"),
        *("flask_mongoengine:app", "--bind"),
    ),
    "django": (
        *("gunicorn", "--preload", "--workers", "2", "--config", "python:django_shop"),
        *("django_shop:application", "--bind"),
    ),
}


@pytest.mark.parametrize("framework", SERVERS)
def test_web(framework: str, proxy: ReplicaSet, collector: Collector) -> None:
    port = consecutive_free_ports(1)
    place = str(port) if "fastapi" in framework else f"127.0.0.1:{port}"
    with running(proxy, collector, *SERVERS[framework], place):
        until(lambda: listens(port))
        proxy.inject(CutAfter("insert", times=CUTS))
        assert post(port, "/orders/1") == (200, {"orders": 1})

    check_retried(collector)


HEADER = "x-request-timeout-ms"
EXPIRED = "the request's deadline had passed when it arrived\n"


def test_fastapi_ends_with_its_caller(proxy: ReplicaSet, collector: Collector) -> None:
    port = consecutive_free_ports(1)
    with running(proxy, collector, *SERVERS["fastapi"], str(port)):
        until(lambda: listens(port))
        assert post(port, "/orders/1", **{HEADER: "20000"}) == (200, {"orders": 1})
        assert post(port, "/orders/1", **{HEADER: "0"}) == (504, EXPIRED)
        proxy.inject(Slow(20))
        began = time.monotonic()
        late = (504, {"error": "the database did not answer in time"})
        assert post(port, "/orders/1", **{HEADER: "300"}) == late
        assert time.monotonic() - began < 5
        proxy.clear()


def test_grpc_ends_with_its_caller(proxy: ReplicaSet, collector: Collector) -> None:
    with running(proxy, collector, "python", "grpc_orders.py", PORT="0") as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(" ")[2])
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            place = channel.unary_unary("/shop.Orders/Place")
            proxy.inject(CutAfter("insert", times=CUTS))
            assert place(b"1", timeout=20) == b"1"
            proxy.inject(Slow(20))
            began = time.monotonic()
            with pytest.raises(grpc.RpcError) as caught:
                place(b"1", timeout=0.5)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert time.monotonic() - began < 5
            proxy.clear()
    # The second call inserts as well, and its attempt has a span if it failed.
    check_retried(collector, operations=2, stale=1)


SEND = "import celery_tasks; celery_tasks.place.delay(1)"


def test_celery(
    proxy: ReplicaSet, collector: Collector, server: EmbeddedServer, tmp_path: Path
) -> None:
    broker = {"BROKER": "filesystem://", "BROKER_FOLDER": str(tmp_path)}
    proxy.inject(CutAfter("insert", times=CUTS))
    worker = ("celery", "--app", "celery_tasks", "worker", "--concurrency", "2")
    with (
        MongoClient[Any](server.uri) as control,
        running(proxy, collector, *worker, **broker),
    ):
        with running(proxy, collector, "python", "-c", SEND, **broker) as sender:
            assert sender.wait() == 0
        until(lambda: control.shop.orders.count_documents({"number": 1}))
        until(lambda: [name for _, name in collector.spans()].count("insert") == CUTS + 1)

        assert control.shop.orders.count_documents({}) == 1
    check_retried(collector)


DRIVER = """\
import json, sys, lambda_handler
class Context:
    def get_remaining_time_in_millis(self): return 20_000
for line in sys.stdin:
    print(json.dumps(lambda_handler.handler(json.loads(line), Context())), flush=True)
"""


def test_lambda_frozen_between_two_events(proxy: ReplicaSet, collector: Collector) -> None:
    with running(proxy, collector, "python", "-c", DRIVER) as process:

        def invoke(number: int) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"number": number}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert invoke(1) == {"orders": 1}
        process.send_signal(signal.SIGSTOP)
        proxy.inject(Reset()).result(TIMEOUT)  # what a network forgets meanwhile
        collector.forget()
        process.send_signal(signal.SIGCONT)
        proxy.inject(CutAfter("insert", times=CUTS))
        assert invoke(2) == {"orders": 1}

        # Flushed before the answer: nothing is left to a process that may be frozen.
        # The pool's connection fails an attempt, unless a monitor noticed the reset before.
        check_retried(collector, stale=1)


def test_plain_script_without_a_change(proxy: ReplicaSet, collector: Collector) -> None:
    proxy.inject(CutAfter("insert", times=CUTS))
    with running(
        *(proxy, collector, "opentelemetry-instrument", "python", "plain_script.py"),
        PYMONGO_RESILIENCE_TIMEOUT_MS="20000",
    ) as process:
        said, _ = process.communicate()

    assert said == "1\n"
    check_retried(collector)


def test_notebook_whose_first_cell_runs_twice(proxy: ReplicaSet, collector: Collector) -> None:
    proxy.inject(CutAfter("insert", times=CUTS))
    execute = (
        "import nbformat; from nbclient import NotebookClient\n"
        "notebook = nbformat.read('notebook.ipynb', 4)\n"
        "notebook.cells.insert(1, notebook.cells[1].copy())\n"
        "NotebookClient(notebook).execute()\n"
        "print(*(o.text for c in notebook.cells for o in c.get('outputs', ())), sep='')\n"
    )
    with running(proxy, collector, "python", "-c", execute) as process:
        said, _ = process.communicate()

    assert said.strip() == "1"
    check_retried(collector)


def test_apscheduler(proxy: ReplicaSet, collector: Collector) -> None:
    """Its thread would end at the first error, and no job would run again."""
    proxy.inject(CutAfter("insert", times=CUTS))
    proxy.inject(CutAfter("update", times=CUTS))
    with running(proxy, collector, "python", "apscheduler_jobs.py") as process:
        said, _ = process.communicate()

    assert said.splitlines().count("tick") >= 3
    check_retried(collector, "insert shop.jobs")


def test_langgraph(proxy: ReplicaSet, collector: Collector) -> None:
    proxy.inject(CutAfter("update", times=CUTS))
    proxy.inject(CutAfter("delete", times=CUTS))
    with running(proxy, collector, "python", "langgraph_checkpoints.py") as process:
        said, _ = process.communicate()

    assert said == "{'visits': 1}\n"
    check_retried(collector, "delete shop.checkpoints")
