"""``opentelemetry-instrument python app.py``: enabled by the entry point, nothing in the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer

APPLICATION = """
import sys
import instrumentation  # the application's own module
import pymongo

with pymongo.MongoClient(sys.argv[1], appname="under-test") as client:
    client.zero_code.coll.find_one()
    client.admin.command({
        "configureFailPoint": "failCommand",
        "mode": {"times": 3},
        "data": {"failCommands": ["insert"], "appName": "under-test", "closeConnection": True},
    })
    try:
        client.zero_code.coll.insert_one({})
        print("survived", instrumentation.NAME)
    except pymongo.errors.AutoReconnect:
        print("failed", instrumentation.NAME)
"""


@pytest.fixture
def application(tmp_path: Path, control: pymongo.MongoClient[Any]) -> Iterator[Path]:
    (tmp_path / "instrumentation.py").write_text("NAME = 'of the application'\n")
    program = tmp_path / "app.py"
    program.write_text(APPLICATION)
    yield program
    # Where the library is off, pymongo gives up before the failpoint is used up.
    control.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def _run(application: Path, server: EmbeddedServer, **environ: str) -> Any:
    tool = Path(sys.executable).with_name("opentelemetry-instrument")
    if not tool.exists():
        pytest.fail(f"{tool} is missing: it comes with opentelemetry-instrumentation")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYMONGO_RESILIENCE_", "OTEL_"))
    }
    return subprocess.run(
        [tool, sys.executable, application.name, server.uri],
        cwd=application.parent,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_application_survives_and_is_seen_without_a_line_of_code(
    application: Path, server: EmbeddedServer
) -> None:
    """What the README exports is all that it needs; here, metrics are looked at as well."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    exported = " ".join(re.findall(r"^\$ export (.*)$", readme, re.MULTILINE)).split()
    environ = dict(each.split("=") for each in exported)
    # Contrib's instrumentation of pymongo may be installed, and would draw the commands.
    environ |= {
        "OTEL_METRICS_EXPORTER": "console",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "pymongo",
    }
    done = _run(application, server, **environ)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "survived of the application" in done.stdout
    assert "retried_ok" in done.stdout
    # The console exporters print one JSON document for each span and each collection of metrics.
    for name, times in (("insert", 4), ("insert zero_code.coll", 1), ("find zero_code.coll", 1)):
        assert done.stdout.count(f'"name": "{name}"') == times
    assert done.stdout.count('"pymongo_resilience.attempts": 4') == 1
    for name in ("db.client.operation.duration", "pymongo_resilience.retries"):
        assert f'"name": "{name}"' in done.stdout
