"""What the library says where something of its own, or of the application's, goes wrong."""

from __future__ import annotations

import importlib.util
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from pymongo.errors import DuplicateKeyError, WriteConcernError
from pymongo_resilience_instrumentation.tools import cli
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.canaries import DATE, MARK, PASSWORD, leaks, text
from support.canary_outputs import instrumented
from support.clients import Side, fail_command

import pymongo_resilience
from pymongo_resilience import override
from pymongo_resilience.events import Event
from pymongo_resilience.rules.strategy import Answer
from pymongo_resilience.strategies import Failure, RetryState

URI = f"mongodb://{MARK}-user:{MARK}-password@127.0.0.1/"
TAKEN = {"_id": text("a taken id")}


class Broken(SpanProcessor):
    """Raises while the library ends a span, which it does while the driver's error is handled."""

    def on_end(self, span: ReadableSpan) -> None:
        raise LookupError("no such exporter")


class Audit:
    """A listener that writes what it hears to the database; but it is there already."""

    def __init__(self, coll: Any) -> None:
        self._coll = coll

    def on_event(self, event: Event, /) -> None:
        # Its own failed write is a decision as well, and no reason to write again.
        if event.operation == "update":
            self._coll.insert_one(dict(TAKEN))


class Gives:
    """A strategy that raises something made of the error it was asked about."""

    def __init__(self, made: Callable[[Exception], Exception]) -> None:
        self._made = made

    def retry_after(self, operation: RetryState, failure: Failure, /) -> Answer:
        raise self._made(failure.error)


def _from(error: Exception) -> Exception:
    made = LookupError("no such rule")
    made.__cause__ = error
    return made


def _broken_tracers() -> TracerProvider:
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(Broken())
    return tracers


FAULTS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    # name: (what instrument() is given, made from a collection; what the log says of it)
    "exporter": (
        lambda _: {"tracer_provider": _broken_tracers()}, "LookupError: no such exporter",
    ),
    "listener": (
        lambda c: {"listeners": [Audit(c)]}, "Exception: DuplicateKeyError: text withheld",
    ),
    "strategy, the same error": (
        lambda _: {"strategy": Gives(lambda error: error)},
        "Exception: WriteConcernError: text withheld",
    ),
    "strategy, from the error": (
        lambda _: {"strategy": Gives(_from)}, "LookupError: no such rule",
    ),
    "strategy, made of the error": (
        lambda _: {"strategy": Gives(RuntimeError)}, "Exception: RuntimeError: text withheld",
    ),
    "strategy, a group": (
        lambda _: {"strategy": Gives(lambda error: ExceptionGroup("several", [error]))},
        "Exception: ExceptionGroup of WriteConcernError: text withheld",
    ),
    "strategy, a group of what was raised from the error": (
        lambda _: {"strategy": Gives(lambda error: ExceptionGroup("several", [_from(error)]))},
        "Exception: ExceptionGroup of LookupError: text withheld",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("caplog")
def test_a_fault_is_logged_without_the_drivers_text(
    fault: str, side: Side, server: EmbeddedServer, database: str, control: Any
) -> None:
    make, words = FAULTS[fault]
    coll = control[database].coll
    coll.insert_one(dict(TAKEN))
    concern = {"writeConcernError": {"code": 262, "errmsg": text("a write concern")}}
    with instrumented(**make(coll)) as outputs:
        ours = side.do(side.client, server.uri)[database].coll
        with pytest.raises(DuplicateKeyError, match=MARK):
            side.do(ours.insert_one, dict(TAKEN))
        with (
            fail_command(control, "update", **concern),
            override(idempotent=True),
            pytest.raises(WriteConcernError, match=MARK),
        ):
            side.do(ours.update_many, {"$or": [TAKEN]}, {"$set": {"a": 1}})
        try:
            raise LookupError(text("what the application is handling"))
        except LookupError:
            with pytest.raises(DuplicateKeyError):
                side.do(ours.insert_one, dict(TAKEN))
    log = outputs.channels()["log"]
    assert any(words in each and "Traceback" in each for each in log)
    assert leaks("log", log) == []


def application(directory: Path, source: str) -> tuple[Path, Any]:
    """A module of the application's; its source is there to be quoted, as for any other."""
    path = directory / "application.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("application", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path, module


def test_a_stack_in_a_span_has_no_source_of_the_application(
    side: Side, server: EmbeddedServer, database: str, tmp_path: Path
) -> None:
    """A line of source may spell out a document, as this one does."""
    path, its = application(
        tmp_path, f"def rows():\n    yield {{}}\n    raise LookupError('{MARK}')\n"
    )
    with instrumented() as outputs:
        coll = side.do(side.client, server.uri)[database].coll
        with pytest.raises(LookupError, match=MARK):
            side.do(coll.insert_many, its.rows())
    (span,) = outputs.spans()
    lines = span.attributes["exception.stacktrace"].splitlines()
    assert f'  File "{path}", line 3, in rows' in lines
    assert lines[-1] == "LookupError"
    assert leaks("spans", outputs.channels()["spans"]) == []


def test_a_stack_in_the_log_has_no_source_of_the_application(
    side: Side, server: EmbeddedServer, database: str, control: Any, tmp_path: Path
) -> None:
    """Neither in the line nor for a handler that makes its own of the exception."""
    path, its = application(
        tmp_path,
        "class Audit:\n    def on_event(self, event):\n"
        f"        raise LookupError('no such audit') if '{MARK}' else None\n",
    )
    control[database].coll.insert_one(dict(TAKEN))
    records: list[logging.LogRecord] = []
    keeper = logging.Handler()
    keeper.emit = records.append
    logger = logging.getLogger("pymongo_resilience")
    with instrumented(listeners=[its.Audit()]) as outputs:
        coll = side.do(side.client, server.uri)[database].coll
        logger.addHandler(keeper)
        try:
            with pytest.raises(DuplicateKeyError):
                side.do(coll.insert_one, dict(TAKEN))
        finally:
            logger.removeHandler(keeper)
    log = outputs.channels()["log"]
    raised = "the listener Audit raised"
    (said,) = (each for each in log if each.startswith(raised) and "Traceback" in each)
    assert f'  File "{path}", line 3, in on_event' in said.splitlines()
    assert said.splitlines()[-1] == "LookupError: no such audit"
    assert leaks("log", log) == []
    (error,) = (record.exc_info[1] for record in records if record.exc_info)
    assert type(error) is LookupError
    assert leaks("log", ["".join(traceback.format_exception(error))]) == []


@pytest.mark.parametrize("argument", ["config", "strategy", "listeners"])
def test_what_is_given_by_mistake_is_not_quoted(argument: str) -> None:
    given = [URI] if argument == "listeners" else URI
    with pytest.raises((TypeError, ValueError), match="of type str") as caught:
        pymongo_resilience.instrument(**{argument: given})
    assert leaks("error", [str(caught.value), repr(caught.value)]) == []


def test_the_config_command_shows_options_of_ours_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "options.toml"
    path.write_text(f'timeout_ms = 4711\npassword = "{PASSWORD}"\nseen = {DATE.isoformat()}\n')
    monkeypatch.setenv("PYMONGO_RESILIENCE_CONFIG", str(path))
    monkeypatch.setenv("PYMONGO_RESILIENCE_PASSWORD", PASSWORD)
    monkeypatch.setenv("MONGODB_URI", URI)
    assert cli.main(["config"]) == 0
    out, err = capsys.readouterr()
    assert "PYMONGO_RESILIENCE_TIMEOUT_MS = 4711" in out
    assert leaks("config", [out, err]) == []
