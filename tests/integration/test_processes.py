"""Forked and spawned children, green threads, and the end of the interpreter.

Each test runs a program of ``tests/programs``, in a process of its own.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pymongo_resilience_instrumentation import forks
from support.child_programs import PROGRAMS, ended, run
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.testbed import EmbeddedServer
from pymongo_resilience.testing import is_active

EXITS_WITHIN = 5
"""Seconds from the end of a program's own work to the end of its process."""

LOADER = {
    "OTEL_PYTHON_CONFIGURATOR": "none",  # the programs set the SDK up
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "pymongo",  # would draw every command twice
}

RETRIED_WRITE = {
    "attempts": 4,
    "outcome": "retried_ok",
    "commands": 4,
    "txn_numbers": 1,
    "root": True,
}
READ = {"attempts": 1, "outcome": "ok", "commands": 0, "txn_numbers": 0, "root": True}


def test_children_forked_from_a_busy_process_are_fresh_and_the_parent_goes_on(
    server: EmbeddedServer, database: str
) -> None:
    answer, _ = run("fork_under_load", server.uri, database)
    assert answer["errors"] == []
    assert answer["updates"] == [RETRIED_WRITE]
    assert len(answer["children"]) == 4
    for child in answer["children"]:
        assert child == {
            # The parent's client is the parent's to show, until the child uses it.
            "servers before": [],
            "connections before": [],
            "counts": [1, 1],
            "updates": [RETRIED_WRITE, RETRIED_WRITE],
            "calls": {"runCommand": 2, "update": 2, "find": 2},
            "retries": {"update": 6},
            "spans once uninstrumented": 0,
        }


def test_no_lock_of_the_library_stays_locked_in_a_forked_child(
    server: EmbeddedServer, database: str
) -> None:
    answer, _ = run("fork_holding_every_lock", server.uri, database)
    assert answer["locks"] >= 4
    assert answer["child"] == {"finds": 3, "connections": {"idle": 2, "used": 0}}


@pytest.mark.parametrize("kind", ["MongoClient", "AsyncMongoClient"])
def test_a_child_forked_inside_of_a_call_has_neither_its_span_nor_its_deadline(
    kind: str, server: EmbeddedServer, database: str
) -> None:
    answer, _ = run("fork_inside_a_call", server.uri, database, kind)
    assert answer["lived on"] == {"current span": False, "finds": [READ, READ]}
    # What the fork left behind in the child is the parent's to end and to count.
    assert answer["unwound"] == {"spans": 0, "counted": False}
    assert [each["outcome"] for each in answer["insert"]] == ["ok"]
    assert answer["find"] == [READ]


def test_a_step_that_fails_in_a_child_keeps_no_other_from_running(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self._name = name

        def reset_after_fork(self) -> None:
            ran.append(self._name)
            raise LookupError(self._name)

    parts = {name: Part(name) for name in forks.HAVE_LOCKS}
    monkeypatch.setattr(forks, "_watched", SimpleNamespace(in_flight={}, **parts))
    forks._in_child()
    assert ran == [*forks.HAVE_LOCKS]
    raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in raised] == ran


def test_a_spawned_child_is_instrumented_by_the_environment_alone(
    server: EmbeddedServer, database: str
) -> None:
    # OpenTelemetry's loader leaves itself in PYTHONPATH for the children (seen with 0.66b2).
    answer, _ = run(
        "spawn",
        server.uri,
        database,
        prefix=(Path(sys.executable).with_name("opentelemetry-instrument"),),
        PYMONGO_RESILIENCE_TIMEOUT_MS="20000",
        **LOADER,
    )
    assert answer["parent"] is True
    assert answer["child"] == {
        "instrumented from the start": True,
        "inserts": [RETRIED_WRITE],
        "retries": {"insert": 3},
    }


REFUSAL = "gevent has monkey-patched this process, which pymongo-resilience does not support"


@pytest.mark.parametrize(
    ("when", "consequence"),
    [("before", None), ("loader", "stays off"), ("after", "is off from now on")],
)
def test_gevent_is_refused_by_an_error_or_in_one_line_where_an_application_starts(
    when: str, consequence: str | None, server: EmbeddedServer, database: str
) -> None:
    variables = {} if consequence is None else LOADER
    answer, stderr = run("monkey_patched", server.uri, database, when, **variables)
    told = str(answer.pop("error")), stderr
    assert answer == {"inserted": 2, "instrumented": False, "spans": 0}
    assert [each.count(REFUSAL) for each in told] == ([1, 0] if consequence is None else [0, 1])
    assert consequence is None or stderr.count(consequence) == 1


def test_gevent_that_is_only_imported_is_none_of_our_business(
    server: EmbeddedServer, database: str
) -> None:
    answer, stderr = run("monkey_patched", server.uri, database, "never")
    assert answer == {"error": None, "inserted": 2, "instrumented": True, "spans": 6}
    assert stderr == ""


def test_eventlet_is_refused_as_well(
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer of eventlet 0.41.3 after monkey_patch(thread=False). Eventlet itself is deprecated
    # and no dependency of the tests.
    patcher = SimpleNamespace(is_monkey_patched=lambda name: name == "socket")
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    with pytest.raises(pymongo_resilience.ConfigurationError, match="eventlet has monkey-patched"):
        instrument()
    assert not is_active()


OPERATION = {"find exits.coll", "db.client.operation.duration"}
EXITS = {
    "an_open_client": (0, OPERATION),
    "sys_exit_among_threads": (3, OPERATION | {"pymongo_resilience.server.state"}),
    "a_daemon_thread_in_its_back_off": (0, {"find", "pymongo_resilience.retries"}),
    "a_pending_task": (0, {"find", "pymongo_resilience.retries"}),
    "uninstrumented": (0, OPERATION),
}


@pytest.mark.parametrize("way", EXITS)
def test_the_interpreter_exits_at_once_with_everything_exported(
    way: str, server: EmbeddedServer
) -> None:
    status, exported = EXITS[way]
    command = [sys.executable, PROGRAMS / "exits.py", server.uri, way]
    returned, output, errors = ended(command, {})
    now = time.monotonic()
    assert errors == ""
    assert returned == status
    _, _, rest = output.partition("end ")
    end, *names = rest.splitlines()
    assert now - float(end) < EXITS_WITHIN
    assert exported <= set(names)
    assert "find exits.other" not in names  # by then it was uninstrumented
