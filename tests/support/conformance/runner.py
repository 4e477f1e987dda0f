"""One case of the unified test format, run with the library or with plain pymongo."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson import json_util
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from support.clients import Side
from support.conformance.deployments import Bed, Requirement
from support.conformance.entities import Entities
from support.conformance.events import match_events
from support.conformance.matching import (
    ERRORS,
    CaseFailed,
    NotUnderstood,
    described,
    match,
    match_error,
    only_known,
)
from support.conformance.operations import perform

import pymongo_resilience
from pymongo_resilience import Config
from pymongo_resilience.testing import set_active

_TRACES: Final = TracerProvider(shutdown_on_exit=False)
_METRICS: Final = MeterProvider(shutdown_on_exit=False)

_FILE: Final = {
    "_yamlAnchors",
    "createEntities",
    "description",
    "initialData",
    "runOnRequirements",
    "schemaVersion",
    "tests",
}
_TEST: Final = {"description", "expectEvents", "operations", "outcome", "runOnRequirements"}
_OPERATION: Final = {
    "arguments",
    "expectError",
    "expectResult",
    "name",
    "object",
    "saveResultAsEntity",
}


@dataclass(frozen=True)
class Case:
    """One test of one file."""

    suite: str
    file: str
    document: Mapping[str, Any]
    """The file without its tests."""
    test: Mapping[str, Any]

    @property
    def description(self) -> str:
        return str(self.test["description"])

    @property
    def requirements(self) -> list[Sequence[Requirement]]:
        """Those of the file and those of the test: each of them lists alternatives."""
        return [each.get("runOnRequirements", ()) for each in (self.document, self.test)]

    @property
    def counts_all_retries(self) -> bool:
        """A failpoint never ends: what is expected is as many attempts as there may be."""
        arguments = [each.get("arguments", {}) for each in self.test["operations"]]
        return any(each.get("failPoint", {}).get("mode") == "alwaysOn" for each in arguments)

    @property
    def expects_one_retry(self) -> bool:
        """The server is lost twice, and the second time is expected to be the last (D33)."""
        second = ("fails on second attempt", "fails after two NotWritablePrimary errors")
        return self.description.endswith(second)

    def __str__(self) -> str:
        return f"{self.suite}/{self.file}: {self.description}"


def load(suite: str, path: Path) -> list[Case]:
    """The cases of a file."""
    document = json_util.loads(path.read_text(encoding="utf-8"))
    tests = document.pop("tests")
    return [Case(suite, path.stem, document, test) for test in tests]


def failure(case: Case, bed: Bed, side: str, *, instrumented: bool) -> Exception | None:
    """Why the case fails, or ``None`` where it passes."""
    try:
        case = copy.deepcopy(case)  # pymongo adds an _id to what it inserts
        only_known(case.document, _FILE, "file")
        only_known(case.test, _TEST, "test")
        _prepare(case, bed)
        with _library(case) if instrumented else contextlib.nullcontext():
            _run(case, bed, side)
        _match_outcome(case, bed)
    except Exception as error:  # noqa: BLE001 - whatever it is, the case has failed by it
        return error
    return None


def _library(case: Case) -> AbstractContextManager[None]:
    """The library in force, as it is by default but for three options.

    No case measures time, so the back-off is as short as it can be. The newest tests want two
    retries after an overload error, where the specification that our default is from says five. And
    some count the retries after a lost server, which only ``mongodb`` limits to one.
    """
    options: dict[str, Any] = {"max_retries": 2} if case.counts_all_retries else {}
    if case.expects_one_retry:
        options["strategy"] = "mongodb"
    return _instrumented(Config(base_backoff_ms=1, **options))


@contextlib.contextmanager
def _instrumented(config: Config) -> Iterator[None]:
    pymongo_resilience.instrument(config, tracer_provider=_TRACES, meter_provider=_METRICS)
    try:
        yield
    finally:
        pymongo_resilience.uninstrument()


def _prepare(case: Case, bed: Bed) -> None:
    for given in case.document.get("initialData", ()):
        only_known(given, ("collectionName", "databaseName", "documents"), "initialData")
        database = bed.control[given["databaseName"]]
        database.drop_collection(given["collectionName"])
        if given["documents"]:
            database[given["collectionName"]].insert_many(given["documents"])
        else:
            database.create_collection(given["collectionName"])


def _run(case: Case, bed: Bed, side_name: str) -> None:
    side = Side(side_name, asyncio.Runner() if side_name == "async" else None)
    entities = Entities(bed, side)
    try:
        entities.create(case.document.get("createEntities", ()))
        for operation in case.test["operations"]:
            _perform(operation, entities, side)
        observed = entities.observed()
    finally:
        with set_active(False):
            bed.control.admin.command("configureFailPoint", "failCommand", mode="off")
        side.close()
    for expected in case.test.get("expectEvents", ()):
        match_events(expected, observed[expected["client"]])


def _perform(operation: Mapping[str, Any], entities: Entities, side: Side) -> None:
    only_known(operation, _OPERATION, "operation")
    name, arguments = operation["name"], operation.get("arguments", {})
    if operation["object"] == "testRunner":
        _perform_ourselves(name, arguments, entities, side)
        return
    target = entities[operation["object"]]
    try:
        result = perform(name, side, target, arguments)
    except ERRORS as error:
        if "expectError" not in operation:
            raise CaseFailed(f"{name}: {described(error)}") from error
        match_error(operation["expectError"], error)
        return
    if "expectError" in operation:
        raise CaseFailed(f"{name}: an error was expected, got {result!r}")
    if "expectResult" in operation:
        if type(result).__module__ == "pymongo.results":
            raise NotUnderstood(f"expectResult of {name}")
        match(operation["expectResult"], result, name)
    if "saveResultAsEntity" in operation:
        entities.keep(operation["saveResultAsEntity"], result)


def _perform_ourselves(
    name: str, arguments: Mapping[str, Any], entities: Entities, side: Side
) -> None:
    if name == "createEntities":
        entities.create(arguments["entities"])
    elif name == "failPoint":
        side.do(entities[arguments["client"]].admin.command, arguments["failPoint"])
    else:
        raise NotUnderstood(f"testRunner: {name}")


def _match_outcome(case: Case, bed: Bed) -> None:
    for expected in case.test.get("outcome", ()):
        collection = bed.control[expected["databaseName"]][expected["collectionName"]]
        found = collection.find(sort=[("_id", 1)]).to_list()
        match(expected["documents"], found, "outcome", root=False)
