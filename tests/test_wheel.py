"""The built wheel as a user installs it: run by ``nox -s wheel``, in an environment and a folder
that know nothing of the source tree, without the OpenTelemetry SDK and the demo's packages."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymongo_resilience_instrumentation
import pytest
from pymongo import AsyncMongoClient, MongoClient

import pymongo_resilience
from pymongo_resilience.testbed import CutAfter, EmbeddedServer, ReplicaSet

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wheel

SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
PACKAGES = (pymongo_resilience, pymongo_resilience_instrumentation)


@pytest.fixture(scope="module")
def proxy() -> Iterator[ReplicaSet]:
    with EmbeddedServer() as server, ReplicaSet(server.address, members=1) as running:
        yield running


@pytest.fixture
def instrumented() -> Iterator[None]:
    pymongo_resilience.instrument()
    yield
    pymongo_resilience.uninstrument()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_comes_from_the_wheel_and_is_typed(package: Any) -> None:
    assert Path(package.__file__).parent.parent == SITE_PACKAGES
    assert Path(package.__file__).with_name("py.typed").is_file()


def test_states_its_version_and_licence() -> None:
    metadata = importlib.metadata.metadata("pymongo-resilience")

    assert metadata["Version"] == pymongo_resilience.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "](docs/" not in metadata["Description"]


def test_needs_no_gpl_server_and_no_sdk_at_run_time() -> None:
    required = importlib.metadata.requires("pymongo-resilience") or []
    always = {text.split(">")[0].split("<")[0] for text in required if "extra ==" not in text}

    assert always == {"opentelemetry-api", "opentelemetry-instrumentation", "pymongo", "wrapt"}
    assert find_spec("opentelemetry.sdk") is None


def test_opentelemetry_finds_the_entry_point() -> None:
    (entry,) = importlib.metadata.entry_points(
        group="opentelemetry_instrumentor", name="pymongo_resilience"
    )

    assert entry.load().__name__ == "PymongoResilienceInstrumentor"


def test_pytest_finds_the_plugin() -> None:
    (entry,) = importlib.metadata.entry_points(group="pytest11", name="pymongo_resilience")

    assert entry.load().mongo_replica_set


def test_retries_a_lost_reply(proxy: ReplicaSet, instrumented: None) -> None:
    with MongoClient[dict[str, Any]](proxy.uri) as client:
        proxy.inject(CutAfter("insert"))
        client.shop.orders.insert_one({"_id": 1})

        assert client.shop.orders.count_documents({}) == 1


def test_retries_a_lost_reply_in_asyncio(proxy: ReplicaSet, instrumented: None) -> None:
    async def insert() -> int:
        async with AsyncMongoClient[dict[str, Any]](proxy.uri) as client:
            proxy.inject(CutAfter("insert"))
            await client.shop.baskets.insert_one({"_id": 1})
            return await client.shop.baskets.count_documents({})

    assert asyncio.run(insert()) == 1


def test_command_line_shows_the_options() -> None:
    shown = run(str(Path(sys.executable).with_name("pymongo-resilience")), "config")

    assert shown.returncode == 0, shown.stderr
    assert "PYMONGO_RESILIENCE_TIMEOUT_MS = unset" in shown.stdout


def test_command_line_writes_the_dashboards(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("pymongo-resilience")
    written = run(str(program), "dashboards", str(tmp_path))

    assert written.returncode == 0, written.stderr
    drawn = json.loads((tmp_path / "pymongo-resilience.grafana.json").read_text())
    assert len(drawn["panels"]) > 20
    assert "alert: PymongoNoPrimary" in (tmp_path / "pymongo-resilience.rules.yml").read_text()


def test_demo_says_which_extra_it_lacks() -> None:
    refused = run(str(Path(sys.executable).with_name("pymongo-resilience")), "demo")

    assert refused.returncode != 0
    assert 'pip install "pymongo-resilience[demo]"' in refused.stderr
