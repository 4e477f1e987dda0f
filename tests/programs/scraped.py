"""Serves metrics to Prometheus while it meets every kind of trouble, until its input ends.

Arguments: host and port of a server, database, port to serve on.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import Any

from common import client
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from pymongo import CursorType
from pymongo.errors import PyMongoError

import pymongo_resilience
from pymongo_resilience import Config, override, readiness
from pymongo_resilience.deadlines import WSGIMiddleware
from pymongo_resilience.streams import ChangeConsumer, CollectionTokens
from pymongo_resilience.testbed import BlackHole, CutAfter, Overload, Refuse, ReplicaSet, Slow


def trouble(proxy: ReplicaSet, database: str, coll: Any, crowded: Any) -> None:
    """Retries, refusals to retry, errors, an overload, a missed deadline, timeouts of a pool."""
    coll.insert_one({"_id": 1})
    for each in (CutAfter("find"), Overload("find")):
        proxy.inject(each)
        coll.find_one()
    for action in (
        lambda: coll.insert_one({"_id": 1}),
        lambda: (proxy.inject(CutAfter("update")), coll.update_many({}, {"$inc": {"n": 1}})),
        lambda: wait_in_vain(crowded),
        lambda: miss_the_deadline(proxy, coll),
    ):
        with contextlib.suppress(PyMongoError):
            action()
    be_rejected(proxy, database)
    proxy.inject(Refuse(0.1)).result()
    coll.delete_many({})


def be_rejected(proxy: ReplicaSet, database: str) -> None:
    """As a client that has no connection yet."""
    with client(proxy.uri, maxIdleTimeMS=1) as new:
        new.admin.command("ping")
        time.sleep(0.01)
        proxy.inject(Overload("hello", times=2))
        new[database].coll.find_one()


def wait_in_vain(crowded: Any) -> None:
    """For the only connection of a pool, which an exhaust cursor has."""
    crowded.insert_many([{}, {}, {}])
    with crowded.find(cursor_type=CursorType.EXHAUST, batch_size=1) as cursor:
        cursor.next()
        with override(timeout_ms=100):
            crowded.find_one()


def miss_the_deadline(proxy: ReplicaSet, coll: Any) -> None:
    proxy.inject(BlackHole(0.2))
    with override(timeout_ms=100):
        coll.find_one()


def hedge(slow: Any) -> None:
    """The budget allows one of twenty reads."""
    with override(hedge=1):
        for _ in range(21):
            slow.find_one()


def serve(one: Any, database: str) -> None:
    """A probe, a request that arrives too late, and a consumer of changes that stops."""
    readiness(one)
    late = WSGIMiddleware(lambda *_: [], header="x-timeout-ms")
    late({"HTTP_X_TIMEOUT_MS": "0"}, lambda *_: None)
    coll, tokens = one[database].changes, CollectionTokens(one[database].tokens, "scraped")
    consumer = ChangeConsumer(coll, lambda _: None, name="scraped", tokens=tokens)
    stopping = threading.Timer(0.1, consumer.stop)
    stopping.start()
    consumer.run()
    stopping.join()


def main(host: str, port: str, database: str, metrics_port: str) -> None:
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    pymongo_resilience.instrument(
        Config(
            timeout_ms=5000,
            metrics="all",
            retry_budget="tokens",
            base_backoff_ms=1,
            circuit_breaker="on",
        )
    )
    start_http_server(int(metrics_port), "127.0.0.1")
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with (
        ReplicaSet((host, int(port)), members=1) as proxy,
        client(proxy.uri) as one,
        client(proxy.uri, maxPoolSize=1, waitQueueTimeoutMS=20) as small,
        ReplicaSet((host, int(port)), members=2) as pair,
        client(pair.uri, readPreference="nearest") as slow,
    ):
        pair.inject(Slow(0.01))
        while not ended.is_set():
            hedge(slow[database].coll)
            serve(one, database)
            trouble(proxy, database, one[database].coll, small[database].crowded)


if __name__ == "__main__":
    main(*sys.argv[1:])
