"""What the documents say is true: their code runs, their names exist, their tables are current."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.metrics import NoOpMeter
from pymongo_resilience_instrumentation.failures.error_texts import OUTCOMES
from pymongo_resilience_instrumentation.telemetry.metrics import DriverMetrics, OperationMetrics
from pymongo_resilience_instrumentation.telemetry.server_gauges import ServerGauges
from support.metrics_table import metrics_table
from support.otlp_collector import collecting
from support.telemetry_names import NAMES

import pymongo_resilience
from pymongo_resilience import testbed
from pymongo_resilience.config import FILE_VARIABLE, OPTIONS, TESTBED_VARIABLES, Config
from pymongo_resilience.testbed import EmbeddedServer

if TYPE_CHECKING:
    from types import ModuleType


ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "tests").glob("*.md"),
        *(ROOT / "bench").glob("*.md"),
    ]
)
TIMEOUT = 120

COMPATIBILITY = ROOT / "docs" / "compatibility.md"


WRITER = ROOT / "docs" / "write_tables.py"
WRITTEN = runpy.run_path(str(WRITER))


def code_blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}


def run(
    code: str, server: EmbeddedServer, *command: str, folder: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [*(command or (sys.executable,)), "-c", code],
        env={**clean, "MONGODB_URI": server.uri, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


SWITCHED_ON = """\
from pymongo_resilience import Config, instrument
instrument(Config(timeout_ms=20_000))
"""
WITH_A_CLIENT = """\
import os
from pymongo import MongoClient
client = MongoClient(os.environ["MONGODB_URI"])
orders, audit = client.shop.orders, client.shop.audit
"""


def quicker(code: str) -> str:
    """Of ten seconds in which nothing changes, one and a half are enough."""
    if "watch(" in code:
        code = code.replace("timeout_ms=10_000", "timeout_ms=1_500")
        code = code.replace("await_time_ms=1_000", "await_time_ms=200")
    return code


NOT_INSTALLED = re.compile(
    r"^(?:from|import) (?:pytest|fastapi|apscheduler|langgraph)\b", re.MULTILINE
)
"""A suite, and frameworks. The folder examples has each in full, and runs it."""
BLOCKS = [
    (f"{document.stem}, block {n}", code)
    for document in DOCUMENTS
    for n, code in enumerate(code_blocks(document))
    if not NOT_INSTALLED.search(code)
]
ONE_AFTER_THE_OTHER = """
import os, sys, traceback
from pymongo import MongoClient
from pymongo_resilience import uninstrument
for name, code in {blocks!r}:
    with MongoClient(os.environ["MONGODB_URI"]) as client:
        client.drop_database("shop")
    try:
        exec(compile(code, name, "exec"), {{"__name__": "__main__"}})
    except BaseException:
        traceback.print_exc()
        sys.exit(f"failed: {{name}}")
    finally:
        uninstrument()
"""


@pytest.mark.usefixtures("empty_shop")
def test_code_runs(server: EmbeddedServer, tmp_path: Path) -> None:
    blocks = []
    for name, code in BLOCKS:
        with_client = code if "MongoClient(" in code else WITH_A_CLIENT + code
        whole = with_client if "instrument(" in code else SWITCHED_ON + with_client
        whole = quicker(whole).replace("mongodb://localhost:27017", server.uri)
        blocks.append((name, whole))
    assert any("OTLPSpanExporter" in code for _, code in blocks)
    with collecting() as collector:
        done = run(
            ONE_AFTER_THE_OTHER.format(blocks=blocks),
            server,
            folder=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        )

    assert done.returncode == 0, done.stderr
    assert ("", "find shop.orders") in collector.spans()
    assert "db.client.operation.duration" in collector.metrics


def test_opentelemetry_instrument_sends_spans_and_metrics(server: EmbeddedServer) -> None:
    code = (
        "import os, pymongo\n"
        "with pymongo.MongoClient(os.environ['MONGODB_URI']) as client:\n"
        "    client.shop.baskets.find_one()\n"
    )
    with collecting() as collector:
        done = run(
            code,
            server,
            str(Path(sys.executable).with_name("opentelemetry-instrument")),
            sys.executable,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
            # It may be installed as well, and would draw the command spans.
            OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="pymongo",
        )

    assert done.returncode == 0, done.stderr
    assert ("", "find shop.baskets") in collector.spans()
    assert "db.client.operation.duration" in collector.metrics


@pytest.mark.parametrize("name", WRITTEN["TABLES"])
def test_table_is_current(name: str) -> None:
    document, _ = WRITTEN["TABLES"][name]
    assert WRITTEN["with_table"](name) == document.read_text(), "run: python docs/write_tables.py"


ON_CALL = [
    each
    for name in ("panels.py", "*.yml")
    for each in (ROOT / "instrumentation").rglob(f"dashboards/{name}")
]
"""What whoever is on call reads: panels, alerts and their runbooks."""
ADVICE = [each for each in (*DOCUMENTS, *ON_CALL) if each.name != "CHANGELOG.md"]


@pytest.mark.parametrize("document", ADVICE, ids=lambda path: path.name)
def test_every_variable_that_is_named_exists_and_takes_the_value(document: Path) -> None:
    known = {option.variable for option in OPTIONS if option.has_variable}
    text = document.read_text()
    named = set(re.findall(r"PYMONGO_RESILIENCE_[A-Z_]*[A-Z]", text))
    assert named <= {*known, FILE_VARIABLE, *TESTBED_VARIABLES}
    for variable, value in re.findall(r"(PYMONGO_RESILIENCE_[A-Z_]*[A-Z])=([\w.]+)", text):
        if variable in known:
            Config.from_env({variable: value.rstrip(".")})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_attribute_and_metric_that_is_named_exists(document: Path) -> None:
    named = set(
        re.findall(
            r"`((?:db|server|exception|error|network|retry|pymongo_resilience)\.[a-z_.]+)`",
            document.read_text(),
        )
    )
    modules = {
        f"pymongo_resilience.{name}"
        for name in (
            *("retry", "slow", "circuit_breaker", "deadlines", "streams"),  # loggers
            *("client_status", "errors", "events", "strategies", "testing", "testbed", "drills"),
        )
    }

    assert named - modules <= NAMES


def test_every_outcome_is_documented() -> None:
    text = (ROOT / "docs" / "telemetry.md").read_text()
    outcomes = {
        "ok", "retried_ok", "not_retryable", "deadline", "overloaded", "attempts_exhausted",
        "budget", "terminal", "breaker_open",
    }  # fmt: skip
    shown = set(OUTCOMES.values()) | {"ok", "retried_ok", "not_retryable"}

    assert shown == outcomes
    assert all(f"`{outcome}`" in text for outcome in outcomes)


class Instruments(NoOpMeter):
    """Takes down the kind and unit of whatever is made, by name."""

    def __init__(self) -> None:
        super().__init__("test")
        self.made: dict[str, str] = {}

    def __getattribute__(self, name: str) -> Any:
        method = object.__getattribute__(self, name)
        kind = KINDS.get(name)
        if kind is None:
            return method

        def create(name: str, *args: Any, **kwargs: Any) -> Any:
            made = method(name, *args, **kwargs)
            unit = args[0] if kind in {"histogram", "counter"} else args[1]
            self.made[name] = f"{kind}, {unit}"
            return made

        return create


KINDS = {
    "create_histogram": "histogram",
    "create_counter": "counter",
    "create_observable_gauge": "gauge",
    "create_observable_up_down_counter": "up-down counter",
}


def test_every_metric_is_documented_with_its_kind_and_unit() -> None:
    meter = Instruments()
    for make in (OperationMetrics, DriverMetrics, ServerGauges):
        make(meter)
    rows = metrics_table()

    assert {name: row.kind for name, row in rows.items()} == meter.made


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_inside_of_the_repository_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    for link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


PUBLIC_MODULES = [
    importlib.import_module(name)
    for page in sorted((ROOT / "docs" / "api").glob("*.md"))
    for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
]
"""Those that the site has a reference of."""


def test_the_site_has_a_reference_of_every_public_module() -> None:
    package = Path(pymongo_resilience.__file__).parent
    public = re.compile(r"^__all__|import __all__", re.MULTILINE)
    with_names = {file for file in package.rglob("*.py") if public.search(file.read_text())}
    assert with_names == {Path(str(module.__file__)) for module in PUBLIC_MODULES}


@pytest.mark.parametrize("module", PUBLIC_MODULES, ids=lambda module: module.__name__)
def test_the_public_names_have_their_page(module: ModuleType) -> None:
    shown = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "names.md").read_text()))
    if module is not testbed:  # too many for a list: testing.md describes each fault
        assert set(module.__all__) - {"__version__"} <= shown


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120


@pytest.mark.thorough("plays every fault on three sides")
def test_the_readme_shows_how_operations_end() -> None:
    """Durations differ from run to run: the endings must not."""
    played = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "faults.py"), "--runs", "1", "--quick"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    ).stdout
    rows = endings(played)
    assert len(rows) > 5
    assert rows <= endings(README.read_text())


def endings(text: str) -> set[str]:
    """The rows of the table of faults, without what each took."""
    rows = re.findall(r"^\| (?:an?|one|three) .*\|$", text, re.MULTILINE)
    return {re.sub(r", [\d,]+ (?:ms|s|attempts)", "", row) for row in rows}


def test_the_readme_names_the_server_of_the_last_run() -> None:
    ran_on = re.search(r"^\| on (MongoDB [\d.]+) \|", COMPATIBILITY.read_text(), re.MULTILINE)
    assert ran_on is not None
    assert f"[{ran_on[1]}](docs/compatibility.md#on-a-real-server)" in README.read_text()


def test_the_start_page_shows_what_its_script_prints(server: EmbeddedServer) -> None:
    start = (ROOT / "docs" / "index.md").read_text()
    shown = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", start, re.DOTALL)
    assert [run(code, server).stdout for code, _ in shown] == [printed for _, printed in shown]
    assert shown


@pytest.mark.parametrize("place", ["mkdocs.yml", "docs/index.md", "docs/names.md"])
def test_every_page_can_be_found(place: str) -> None:
    """The reference of each module is listed with its names, not on the start page."""
    named = set(re.findall(r"\b((?:api/)?[a-z-]+\.md)\b", (ROOT / place).read_text()))
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"index.md"}
    reference = {page for page in pages if page.startswith("api/")}

    if place == "docs/names.md":
        assert reference <= named
    else:
        expected = pages if place == "mkdocs.yml" else pages - reference
        assert expected == named - {"index.md"}


def test_each_trial_of_another_package_is_in_the_table() -> None:
    document = COMPATIBILITY.read_text()
    trials = {path.name for path in (ROOT / "tests" / "compatibility").glob("try_*.py")}
    assert set(re.findall(r"\(\.\./tests/compatibility/(\w+\.py)\)", document)) == trials
