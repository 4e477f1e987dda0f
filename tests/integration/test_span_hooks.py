"""Hooks on command spans, with the signature of opentelemetry-instrumentation-pymongo's."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import monitoring
from pymongo.errors import OperationFailure
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.clients import Side
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience.testing import is_active


def test_each_is_called_with_its_span_and_event(
    side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    heard: list[tuple[str, type, str, int]] = []

    def hook(name: str) -> Any:
        def call(span: Any, event: Any) -> None:
            span.set_attribute(name, event.command_name)
            heard.append((name, type(event), event.command_name, span.context.span_id))

        return call

    names = ("request_hook", "response_hook", "failed_hook")
    telemetry = instrument(arguments={name: hook(name) for name in names})
    client = side.do(side.client, server.uri)
    side.do(client[database].coll.find_one)
    with pytest.raises(OperationFailure):
        side.do(client[database].command, "nonsense")
    side.do(client[database].command, "createUser", "ada", pwd="secret", roles=["read"])
    # Other tests' clients may still be alive, and end their sessions meanwhile.
    spans = [span for span in telemetry.spans() if not _is_operation(span)]
    find, nonsense = (span for span in spans if span.name in {"find", "nonsense"})
    assert "createUser" not in {span.name for span in spans}
    assert heard == [
        ("request_hook", monitoring.CommandStartedEvent, "find", find.context.span_id),
        ("response_hook", monitoring.CommandSucceededEvent, "find", find.context.span_id),
        ("request_hook", monitoring.CommandStartedEvent, "nonsense", nonsense.context.span_id),
        ("failed_hook", monitoring.CommandFailedEvent, "nonsense", nonsense.context.span_id),
    ]
    assert find.attributes["response_hook"] == "find"
    assert nonsense.attributes["failed_hook"] == "nonsense"


@pytest.mark.parametrize("mode", ["on_retry", "never"])
def test_they_get_the_operations_span_where_that_shows_the_command(
    mode: str, side: Side, server: EmbeddedServer, database: str, instrument: Instrument
) -> None:
    def hook(name: str) -> Any:
        return lambda span, event: span.set_attribute(name, event.command_name)

    names = ("request_hook", "response_hook", "failed_hook")
    hooks = {name: hook(name) for name in names}
    telemetry = instrument(command_spans=mode, arguments=hooks)
    coll = side.do(side.client, server.uri)[database].coll
    side.do(coll.find_one)
    (shown,) = telemetry.spans()
    assert shown.attributes["request_hook"] == shown.attributes["response_hook"] == "find"
    with pytest.raises(OperationFailure):
        side.do(coll.find_one, {"$no": 1})
    assert any("failed_hook" in span.attributes for span in telemetry.spans())


def _is_operation(span: Any) -> bool:
    return "db.operation.name" in span.attributes


@pytest.mark.parametrize("name", ["request_hook", "response_hook", "failed_hook"])
def test_one_that_raises_is_logged_once_and_hurts_nothing(
    name: str, side: Side, server: EmbeddedServer, database: str, instrument: Instrument,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    calls: list[Any] = []

    def broken(span: Any, event: Any) -> None:
        calls.append(event)
        raise LookupError("of the hook")

    telemetry = instrument(arguments={name: broken})
    client = side.do(side.client, server.uri)
    for _ in range(3):
        side.do(client[database].coll.find_one)
        with pytest.raises(OperationFailure):
            side.do(client[database].command, "nonsense")
    assert len(calls) == (6 if name == "request_hook" else 3)
    assert len(telemetry.spans()) == 12
    (record,) = [each for each in caplog.records if name in each.message]
    assert "not logged" in record.message
    assert repr(record.exc_info[1] if record.exc_info else None) == "LookupError('of the hook')"


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="request_hook is of type str: expected a function"):
        pymongo_resilience.instrument(request_hook="print")  # type: ignore[arg-type]  # what is refused
    assert not is_active()
