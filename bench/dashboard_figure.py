"""docs/dashboard.svg: the rows of the Grafana dashboard, drawn from what a Prometheus answers.

    python bench/dashboard_figure.py [FILE] [--seconds 90]

A workload runs on a replica set of the test bed through one fault after the other, and a Prometheus
scrapes it. Then each panel's queries are asked as Grafana asks them. Needs the extras ``dev`` and
``bench``, and Prometheus. Times differ from run to run; what is shown does not.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from figures import save
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation.tools.dashboards.panels import ROWS, Panel
from pymongo_resilience_instrumentation.tools.testbed.scenario import strike

from pymongo_resilience import Config, instrument, override, uninstrument
from pymongo_resilience.testbed import (
    CutAfter,
    Election,
    EmbeddedServer,
    RateLimit,
    ReplicaSet,
    Restart,
    Scenario,
    Slow,
)

FILE = Path(__file__).parent.parent / "docs" / "dashboard.svg"
MEMBERS, METRICS, PROMETHEUS = 27217, 27317, 27318
"""Ports."""
THREADS = 6
PAUSE_S = 0.02
SCRAPED_MS = 500
RATE = "5s"
COLUMNS = 3
LINES = 4
"""Of a legend; a panel that has more shows the highest."""
VARIABLES = dict.fromkeys(("job", "instance", "client", "server", "namespace"), ".*")
# Okabe and Ito's.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
Span = tuple[float, float, str]


def scenario(seconds: float) -> Scenario:
    """One fault after the other, between them time to recover."""
    faults = (
        strike(CutAfter, "update", times=40, on="primary"),
        strike(Election, gap=3.0),
        strike(RateLimit, 20, seconds=5.0, on="primary"),
        strike(Restart, downtime=3.0, on=2),
        strike(Slow, 0.4, within=5.0, on="primary"),
    )
    return Scenario([(seconds / (len(faults) + 1), each) for each in faults])


def work(client: MongoClient[Any], end: threading.Event, number: int) -> None:
    rng = random.Random(number)  # noqa: S311 - pauses, no secrets
    orders = client.shop.orders
    while not end.wait(rng.expovariate(1 / PAUSE_S)):
        with suppress(PyMongoError):
            key = {"_id": rng.randrange(100)}
            match rng.randrange(4):
                case 0:
                    orders.insert_one({"number": number})
                case 1:
                    orders.update_one(key, {"$inc": {"visits": 1}}, upsert=True)
                case 2:
                    with override(timeout_ms=200):
                        orders.find_one(key)
                case _:
                    orders.find_one(key)


@contextmanager
def scraping(home: Path) -> Iterator[None]:
    """A Prometheus that scrapes this process."""
    executable = shutil.which("prometheus")
    if executable is None:
        raise SystemExit("there is no prometheus (Debian: apt-get install prometheus)")
    (home / "prometheus.yml").write_text(
        f"global: {{scrape_interval: {SCRAPED_MS}ms, scrape_timeout: {SCRAPED_MS}ms}}\n"
        "scrape_configs:\n"
        f'  - {{job_name: shop, static_configs: [{{targets: ["127.0.0.1:{METRICS}"]}}]}}\n'
    )
    command = [
        executable,
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS}",
    ]
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as running,  # noqa: S603 - our own
    ):
        try:
            while not answers("query", query="up == 1"):
                time.sleep(0.1)
                if running.poll() is not None:
                    raise SystemExit((home / "log").read_text())
            yield
        finally:
            running.kill()


def answers(path: str, **parameters: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except OSError:
        return []


Line = tuple[str, list[float], list[float]]


def lines_of(panel: Panel, began: float, ended: float) -> Iterator[Line]:
    """Of all queries of a panel, as Grafana would draw them: name, times, values."""
    for query in panel.queries:
        expression = query.expression.replace("$__rate_interval", RATE)
        for name, value in VARIABLES.items():
            expression = expression.replace(f"${name}", value)
        span = {"start": str(began), "end": str(ended), "step": "1s"}
        for series in answers("query_range", query=expression, **span):
            name = query.legend
            for label in re.findall(r"\{\{(\w+)\}\}", name):
                name = name.replace("{{" + label + "}}", series["metric"].get(label, ""))
            times, values = zip(*series["values"], strict=True)
            yield name, [float(each) - began for each in times], [float(each) for each in values]


def measured(seconds: float) -> tuple[dict[str, dict[Panel, list[Line]]], list[Span]]:
    """By row and panel what Prometheus has, and when which fault was in force."""
    faults: list[Span] = []
    end = threading.Event()
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    start_http_server(METRICS, "127.0.0.1")
    with (
        tempfile.TemporaryDirectory() as home,
        EmbeddedServer() as server,
        ReplicaSet(server.address, port=MEMBERS) as replica_set,
        scraping(Path(home)),
    ):
        instrument(Config(timeout_ms=8_000))
        began = time.time()
        try:
            with (
                MongoClient[Any](replica_set.uri, maxPoolSize=4) as client,
                ThreadPoolExecutor(THREADS) as threads,
            ):
                try:
                    for number in range(THREADS):
                        threads.submit(work, client, end, number)
                    for pause, strike in scenario(seconds).steps:
                        time.sleep(pause)
                        name, at = strike.kind.__name__, time.time()
                        replica_set.inject(strike.fault(), strike.on).add_done_callback(
                            lambda _, name=name, at=at: faults.append(
                                (at - began, time.time() - at, name)
                            )
                        )
                    time.sleep(max(0.0, began + seconds - time.time()))
                    ended = time.time()
                    replica_set.clear()
                finally:
                    end.set()
        finally:
            uninstrument()
        found = {
            row: {panel: list(lines_of(panel, began, ended)) for panel in panels}
            for row, panels in ROWS.items()
        }
    return found, faults


def draw(
    found: dict[str, dict[Panel, list[Line]]], faults: list[Span], seconds: float, file: Path
) -> None:
    heights = [-(-len(panels) // COLUMNS) for panels in found.values()]
    figure = Figure(figsize=(9, 1.9 * sum(heights)), layout="constrained")
    for part, (row, panels) in zip(
        figure.subfigures(len(found), height_ratios=heights), found.items(), strict=True
    ):
        part.suptitle(row, x=0.01, ha="left", fontsize=10, fontweight="bold")
        grid = list(part.subplots(-(-len(panels) // COLUMNS), COLUMNS, squeeze=False).flat)
        for axes, (panel, lines) in zip(grid, panels.items(), strict=False):
            _panel(axes, panel, lines, faults, names=axes is grid[0] and row == next(iter(found)))
            axes.set_xlim(0, seconds)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
    save(figure, file, "dashboard")


def _panel(axes: Axes, panel: Panel, lines: list[Line], faults: list[Span], *, names: bool) -> None:
    """``names``: those of the faults, on their stripes."""
    axes.set_title(panel.title, fontsize=8, loc="left")
    across = axes.get_xaxis_transform()
    for began, seconds, name in faults:
        axes.axvspan(began, began + max(seconds, 0.3), color="#d9534f", alpha=0.15, linewidth=0)
        if names:
            axes.text(began, 0.3, name, fontsize=7, rotation=90, transform=across, va="bottom")
    ordered = sorted(lines, key=lambda line: -max(line[2], default=0.0))[:LINES]
    for number, (name, times, values) in enumerate(ordered):
        axes.plot(times, values, label=name, color=COLOURS[number % len(COLOURS)], linewidth=1)
    if ordered:
        axes.legend(fontsize=7, loc="upper left", frameon=False, handlelength=1, labelspacing=0.2)
    else:
        axes.text(
            0.5, 0.5, "empty at default settings", fontsize=7, ha="center", transform=axes.transAxes
        )
    factor, suffix = {"s": (1, " s"), "ops": (1, " /s"), "percentunit": (100, " %")}.get(
        panel.unit, (1, "")
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * factor:g}{suffix}"))
    # The legend is above the lines.
    axes.set_ylim(0, (1.2 + 0.2 * len(ordered)) * axes.get_ylim()[1])
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)


def main() -> None:
    logging.getLogger("pymongo_resilience").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument("--seconds", type=float, default=90.0)
    given = parser.parse_args()
    found, faults = measured(given.seconds)
    empty = [
        panel.title for panels in found.values() for panel, lines in panels.items() if not lines
    ]
    draw(found, faults, given.seconds, given.file)
    print(given.file, *(f"no data: {title}" for title in empty), sep="\n")


if __name__ == "__main__":
    main()
