"""A real Prometheus scrapes a running program: every query of the dashboard has an answer there."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.dashboards import RULES, content
from pymongo_resilience_instrumentation.tools.dashboards.panels import ROWS
from support.clients import wait_until
from support.free_ports import consecutive_free_ports
from support.metrics_table import metrics_table

from pymongo_resilience.testbed import EmbeddedServer

PROGRAM = Path(__file__).parent.parent / "programs" / "scraped.py"
ALL = dict.fromkeys(("$job", "$instance", "$client", "$server", "$namespace"), ".*")
WITHIN = 30
"""Seconds until the last query has an answer; it takes about five."""
QUERIES = {
    f"{panel.title}, {number}": query.expression
    for panels in ROWS.values()
    for panel in panels
    for number, query in enumerate(panel.queries, 1)
}

EXECUTABLE = shutil.which("prometheus")

pytestmark = [
    pytest.mark.thorough("Prometheus scrapes for seconds"),
    pytest.mark.skipif(
        EXECUTABLE is None,
        reason="needs Prometheus: install it (Debian: apt-get install prometheus)",
    ),
]


class Prometheus:
    def __init__(self, port: int) -> None:
        self._api = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"{self._api}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - of our own
            return json.load(answer)["data"]

    def has_data(self, expression: str) -> bool:
        """Whether a query has an answer that is a number."""
        for variable, value in {**ALL, "$__rate_interval": "10s"}.items():
            expression = expression.replace(variable, value)
        found = self.ask("query", query=expression)["result"]
        return any(not math.isnan(float(each["value"][1])) for each in found)

    def is_ready(self) -> bool:
        try:
            self.ask("query", query="1")
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def prometheus(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    home = tmp_path_factory.mktemp("prometheus")
    served, listening = (first := consecutive_free_ports(2)), first + 1
    (home / RULES).write_text(content(RULES))
    (home / "prometheus.yml").write_text(
        f"""\
global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}}
rule_files: [{RULES}]
scrape_configs:
  - job_name: shop
    static_configs: [{{targets: ["127.0.0.1:{served}"]}}]
"""
    )
    host, port = server.address
    with (
        subprocess.Popen(
            [sys.executable, PROGRAM, host, str(port), "scraped", str(served)],
            stdin=subprocess.PIPE,
        ) as program,
        (home / "log").open("w") as log,
        subprocess.Popen(
            [
                str(EXECUTABLE),
                f"--config.file={home / 'prometheus.yml'}",
                f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address=127.0.0.1:{listening}",
            ],
            stderr=log,
        ) as running,
    ):
        try:
            one = Prometheus(listening)
            wait_until(one.is_ready, timeout=WITHIN)
            wait_until(
                lambda: program.poll() is not None or one.has_data("up == 1"), timeout=WITHIN
            )
            assert program.poll() is None, "the program has ended"
            yield one
        finally:
            running.kill()  # a graceful end takes it five seconds
            assert program.stdin is not None
            program.stdin.close()
            status = program.wait(timeout=WITHIN)
    assert status == 0


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_dashboard_has_data(query: str, prometheus: Prometheus) -> None:
    # A rate needs two samples: a late scrape leaves it without for a moment.
    wait_until(lambda: prometheus.has_data(QUERIES[query]), timeout=WITHIN)


@pytest.mark.parametrize("metric", metrics_table())
def test_every_metric_has_its_documented_name_and_labels(
    metric: str, prometheus: Prometheus
) -> None:
    row = metrics_table()[metric]
    name = row.in_prometheus + ("_count" if row.kind.startswith("histogram") else "")

    def labels() -> set[str]:
        series = prometheus.ask("series", **{"match[]": name})
        return {label for each in series for label in each if not label.startswith("otel_scope_")}

    expected = {attribute.replace(".", "_") for attribute in row.attributes}
    wait_until(lambda: labels() == expected | {"__name__", "job", "instance"}, timeout=WITHIN)


def test_every_rule_is_evaluated_and_every_record_has_data(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        found = prometheus.ask("rules")["groups"]
        return [rule for group in found for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), timeout=WITHIN)
    records = [rule["name"] for rule in rules() if rule["type"] == "recording"]
    assert len(records) >= 5
    for record in records:
        wait_until(lambda record=record: prometheus.has_data(record), timeout=WITHIN)
