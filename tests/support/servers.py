"""Which server the tests run on, and which of them it cannot run.

SecantusDB, or the mongod that PYMONGO_RESILIENCE_TESTBED_SERVER names. Marks:

- ``needs_server("8.0")``: an older mongod lacks what it tests;
- ``needs_mongod("why")``: SecantusDB lacks it;
- ``needs_secantus("why")``: it holds what SecantusDB alone does.

A test that fails because pymongo refuses what an older mongod lacks is skipped as well.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.testbed.server import program

from pymongo_resilience.config import PYTHON_VARIABLE

FOUND_BY_NOX = Path(__file__).parents[2] / ".nox" / "server" / "bin" / "python"
if find_spec("secantus") is None and FOUND_BY_NOX.exists():
    os.environ.setdefault(PYTHON_VARIABLE, str(FOUND_BY_NOX))
SERVER_PYTHON = os.environ.get(PYTHON_VARIABLE, sys.executable)
"""The Python in which SecantusDB is installed: another one, if it has no wheel for this one."""
_LACKING = re.compile(r"requires MongoDB server version (\d+\.\d+)")


@functools.cache
def mongod_version() -> tuple[int, ...] | None:
    """Of the mongod that the tests run on; None on SecantusDB."""
    mongod = program(None)
    if mongod is None:
        return None
    told = subprocess.run([mongod, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"db version v([\d.]+)", told)
    assert found is not None, told
    return _parsed(found[1])


def has(version: str) -> bool:
    """Whether the server knows what came with this MongoDB; SecantusDB is not older."""
    running = mongod_version()
    return running is None or running >= _parsed(version)


def cases(names: Iterable[str], since: Mapping[str, str]) -> list[Any]:
    """The names as parameters of a test; a mongod older than ``since`` says skips the case."""
    needs = {name: pytest.mark.needs_server(version) for name, version in since.items()}
    return [pytest.param(name, marks=needs.get(name, ()), id=name) for name in names]


class Servers:
    """The hooks: skip what the server cannot run."""

    def pytest_configure(self, config: pytest.Config) -> None:
        for name in ("needs_server(version)", "needs_mongod(why)", "needs_secantus(why)"):
            config.addinivalue_line("markers", f"{name}: see tests/support/servers.py")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        version = mongod_version()
        for item in items:
            for mark in list(item.iter_markers()):
                reason = _reason(mark, version)
                if reason is not None:
                    item.add_marker(pytest.mark.skip(reason=reason))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        lacking = _LACKING.search(report.longreprtext) if report.failed else None
        if lacking is not None and mongod_version() is not None:
            report.outcome = "skipped"
            report.longrepr = (__file__, 0, f"needs MongoDB {lacking[1]}: pymongo refuses")
        return report


def _reason(mark: pytest.Mark, version: tuple[int, ...] | None) -> str | None:
    if version is None:
        return f"needs a mongod: {mark.args[0]}" if mark.name == "needs_mongod" else None
    if mark.name == "needs_secantus":
        return f"needs SecantusDB: {mark.args[0]}"
    if mark.name == "needs_server" and not has(mark.args[0]):
        return f"needs MongoDB {mark.args[0]}, and this is {'.'.join(map(str, version))}"
    return None


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
