"""Span trees as values that can be compared whole: what was drawn, and what should have been.

Only what differs from run to run (ids, and where an error was raised) stands for itself, once its
type has been checked.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

Tree = tuple[str, dict[str, Any], list["Tree"]]
"""Name; kind, status, events and attributes; children in the order of their start."""


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _stack(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("Traceback (most recent call last):\n")


VARYING: dict[str, Callable[[Any], bool]] = {
    "db.mongodb.server_connection_id": _positive,
    "db.mongodb.driver_connection_id": _positive,
    "db.mongodb.txn_number": _positive,
    "db.mongodb.cursor_id": lambda value: type(value) is int and value != 0,
    "db.mongodb.lsid": lambda value: str(uuid.UUID(value)) == value,
    "exception.stacktrace": _stack,
    "db.query.text": lambda value: next(iter(json.loads(value))) in DESCRIBED,
}
DESCRIBED = frozenset({
    "aggregate", "bulkWrite", "count", "createIndexes", "delete", "distinct", "find",
    "findAndModify", "insert", "update",
})  # fmt: skip
"""Commands whose shape is shown; see test_query_shapes.py."""
OK = {"status": StatusCode.UNSET, "kind": SpanKind.CLIENT, "events": []}


def trees(spans: Iterable[ReadableSpan]) -> list[Tree]:
    """Each span that has no parent among them, with all that is below it."""
    below: dict[int | None, list[ReadableSpan]] = {}
    spans = sorted(spans, key=lambda span: span.start_time or 0)
    known = {span.context.span_id for span in spans}
    for span in spans:
        parent = None if span.parent is None else span.parent.span_id
        below.setdefault(parent if parent in known else None, []).append(span)

    def tree(span: ReadableSpan) -> Tree:
        assert span.end_time is not None
        children = below.get(span.context.span_id, [])
        assert {each.context.trace_id for each in children} <= {span.context.trace_id}
        return span.name, _facts(span), [tree(each) for each in children]

    return [tree(span) for span in below.get(None, [])]


def _facts(span: ReadableSpan) -> dict[str, Any]:
    attributes = dict(span.attributes or {})
    for name, is_right in VARYING.items():
        if name in attributes:
            assert is_right(attributes[name]), f"{name}={attributes[name]!r}"
            attributes[name] = name
    return {
        "kind": span.kind,
        "status": span.status.status_code,
        "events": [(event.name, dict(event.attributes or {})) for event in span.events],
        **attributes,
    }


def operation(name: str, database: str, collection: str | None, *below: Tree, **more: Any) -> Tree:
    where = database if collection is None else f"{database}.{collection}"
    facts = {
        **OK,
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.operation.name": name,
        "db.operation.summary": f"{name} {where}",
        "pymongo_resilience.attempts": 1,
        "pymongo_resilience.outcome": "ok",
        **more,
    }
    if collection is not None:
        facts["db.collection.name"] = collection
    return f"{name} {where}", facts, list(below)


def command(
    name: str, database: str, collection: str | None, port: int, *ids: str, **more: Any
) -> Tree:
    """``ids``: what it carries beside its session, ``txn_number`` or ``cursor_id``."""
    where = database if collection is None else f"{database}.{collection}"
    facts = {
        **OK,
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.command.name": name,
        "db.query.summary": f"{name} {where}",
        "server.address": "127.0.0.1",
        "server.port": port,
        "network.transport": "tcp",
        **more,
    }
    if collection is not None:
        facts["db.collection.name"] = collection
    if name in DESCRIBED:
        facts["db.query.text"] = "db.query.text"
    for each in ("server_connection_id", "driver_connection_id", "lsid", *ids):
        facts[f"db.mongodb.{each}"] = f"db.mongodb.{each}"
    return name, facts, []


def transaction(*below: Tree, **more: Any) -> Tree:
    return "transaction", {**OK, "db.system.name": "mongodb", **more}, list(below)


def failed(tree: Tree, cls: str, message: str, **more: Any) -> Tree:
    """The same, with an error that its operation ended with."""
    name, facts, below = tree
    error = {
        "status": StatusCode.ERROR,
        "exception.type": cls,
        "exception.message": message,
        "exception.stacktrace": "exception.stacktrace",
    }
    return name, {**facts, **error, **more}, below
