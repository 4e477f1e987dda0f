"""Every wrapped method takes what the original takes: by position, by name, and from a newer
pymongo that has one more parameter. The driver's own calls are turned into such ones here."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pymongo
import pytest
from pymongo.errors import PyMongoError
from pymongo_resilience_instrumentation import driver, self_check
from pymongo_resilience_instrumentation.instrumentor import PymongoResilienceInstrumentor
from support.clients import SentCommands, Side, fail_command
from support.every_method import SENDING, exists
from support.every_operation import Scene
from support.telemetry import Instrument, Telemetry

import pymongo_resilience
from pymongo_resilience.testbed import ReplicaSet

pytestmark = pytest.mark.oldest
NEWER = "from_a_newer_pymongo"
OWNERS = ("Collection", "Database", "MongoClient", "Cursor", "CommandCursor", "ChangeStream",
          "ClientSession", "GridFSBucket", "GridIn", "GridOut")  # fmt: skip
Place = tuple[Any, str]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
EVERYTHING = {
    "timeout_ms": 20_000, "circuit_breaker": "on", "server_selection": "least_loaded",
    "command_comment": True,
}  # fmt: skip


def by_name(bound: inspect.BoundArguments) -> Arguments:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for index, (name, each) in enumerate(bound.signature.parameters.items()):
        if name not in bound.arguments:
            continue
        value = bound.arguments[name]
        if each.kind is each.VAR_KEYWORD:
            kwargs.update(value)
        elif each.kind is each.VAR_POSITIONAL:
            args += value
        elif (index == 0 and name == "self") or _gathers(bound):
            args.append(value)
        else:
            kwargs[name] = value
    return tuple(args), kwargs


def _gathers(bound: inspect.BoundArguments) -> bool:
    """What stands before ``*args`` can only be given by position where those are given."""
    kinds = {each.kind: name for name, each in bound.signature.parameters.items()}
    name = kinds.get(inspect.Parameter.VAR_POSITIONAL)
    return name is not None and bool(bound.arguments.get(name))


def by_position(bound: inspect.BoundArguments) -> Arguments:
    if inspect.Parameter.VAR_POSITIONAL not in {
        p.kind for p in bound.signature.parameters.values()
    }:
        bound.apply_defaults()
    return bound.args, bound.kwargs


def newer(bound: inspect.BoundArguments) -> Arguments:
    return bound.args, {**bound.kwargs, NEWER: "given"}


SHAPES = {each.__name__: each for each in (by_name, by_position, newer)}


class Reshaped:
    """The driver's methods as if their callers were written otherwise."""

    def __init__(self) -> None:
        self.called: dict[Place, set[bool]] = {}
        """Whether the originals were given what the caller gave, by place. Of the test's own thread
        alone: the background tasks of other clients call before all methods are reshaped."""
        self._thread = threading.get_ident()
        self._stubs: dict[Place, Any] = {}
        self._ours: dict[Place, Any] = {}

    def make_newer(self, places: dict[Place, Any]) -> None:
        for place, original in places.items():
            self._stubs[place] = original
            setattr(*place, self._stub(place, original))

    def _stub(self, place: Place, original: Any) -> Any:
        def seen(kwargs: dict[str, Any]) -> dict[str, Any]:
            rest = dict(kwargs)
            given = rest.pop(NEWER, None) == "given"
            if threading.get_ident() == self._thread:
                self.called.setdefault(place, set()).add(given)
            return rest

        def stub(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **seen(kwargs))

        async def async_stub(*args: Any, **kwargs: Any) -> Any:
            return await original(*args, **seen(kwargs))

        made = async_stub if inspect.iscoroutinefunction(original) else stub
        functools.update_wrapper(made, original)
        signature = inspect.signature(original)
        *most, last = [*signature.parameters.values()] or [None]
        more = inspect.Parameter(NEWER, inspect.Parameter.KEYWORD_ONLY, default=None)
        if last is not None and last.kind is last.VAR_KEYWORD:
            parameters = [*most, more, last]
        else:
            parameters = [*signature.parameters.values(), more]
        made.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return made

    def reshape(self, shape: Callable[[inspect.BoundArguments], Arguments]) -> None:
        for place, original in self._stubs.items():
            self._ours[place] = vars(place[0])[place[1]]
            setattr(*place, self._caller(place, inspect.signature(original), shape))

    def _caller(self, place: Place, signature: inspect.Signature, shape: Any) -> Any:
        ours, is_method = self._ours[place], inspect.isclass(place[0])

        def call(*args: Any, **kwargs: Any) -> Any:
            if NEWER in kwargs:
                return ours(*args, **kwargs)
            args, kwargs = shape(signature.bind(*args, **kwargs))
            if is_method:
                return ours.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
            return ours(*args, **kwargs)

        return functools.wraps(self._stubs[place])(call)

    def put_back(self) -> None:
        for place, ours in self._ours.items():
            setattr(*place, ours)
        pymongo_resilience.uninstrument()
        for place, original in self._stubs.items():
            setattr(*place, original)


@pytest.fixture(params=SHAPES)
def reshaped(
    request: pytest.FixtureRequest, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Reshaped, Telemetry]]:
    instrument(**EVERYTHING)
    patches = PymongoResilienceInstrumentor()._patches
    assert patches is not None
    places = {
        (p.owner, p.name): p.original
        for p in reversed(patches.applied)
        if not inspect.isclass(p.original)
    }
    pymongo_resilience.uninstrument()
    # What it looks for in the code of pymongo's own methods is not in that of the ones here.
    lacking = self_check.missing(driver.private_names.parts())
    monkeypatch.setattr(self_check, "missing", lambda _: lacking)
    made = Reshaped()
    made.make_newer(places)
    telemetry = instrument(**EVERYTHING)

    made.reshape(SHAPES[request.param])
    yield made, telemetry
    made.put_back()


@pytest.fixture
def scene(
    side: Side, proxy: ReplicaSet, database: str, reshaped: tuple[Reshaped, Telemetry]
) -> Scene:
    sent = SentCommands()
    made = Scene(side, proxy.uri, side.client(proxy.uri, event_listeners=[sent]), database)
    made.prepare()
    made.sent, made.telemetry = sent, reshaped[1]  # type: ignore[attr-defined]  # for these tests
    return made


def test_whatever_the_shape_of_a_call_everything_works(
    scene: Scene,
    reshaped: tuple[Reshaped, Telemetry],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, telemetry = reshaped
    for owner in OWNERS:
        for method, step in SENDING[owner].items():
            if exists(owner, method, scene):
                with suppress(PyMongoError):  # of a server without Atlas Search
                    step(scene)
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []
    sent = scene.sent  # type: ignore[attr-defined]
    drawn = [span for span in telemetry.spans() if "db.command.name" in (span.attributes or {})]
    operations = {span.context.span_id for span in telemetry.operations()}
    assert len(drawn) > 100
    orphans = {s.name for s in drawn if s.parent is None or s.parent.span_id not in operations}
    # Of cursors that were collected: pymongo's background task closes those.
    assert orphans <= {"killCursors"}
    given = {each for seen in calls.called.values() for each in seen}
    assert given == {"newer" in request.node.name}
    names = {name for _, name in calls.called}
    assert names >= {"insert_one", "find", "_run_operation", "to_list",
                     "close", "apply_selector", "get_server_selection_timeout", "apply_timeout",
                     "connect", "_kill_cursors", "with_transaction", "next", "__init__",
                     "upload_from_stream"}  # fmt: skip
    assert len(sent.started_events) > 100


def test_whatever_the_shape_of_a_call_it_is_repeated(
    scene: Scene,
    control: pymongo.MongoClient[Any],
    reshaped: tuple[Reshaped, Telemetry],
) -> None:
    _, telemetry = reshaped
    with fail_command(control, "insert", closeConnection=True, times=3):
        scene.do(scene.coll.insert_one, {"_id": "written"})
    with fail_command(control, "find", closeConnection=True, times=3):
        assert scene.do(scene.coll.find_one, {"_id": "written"}) is not None
    assert len(telemetry.decisions.events) == 6
