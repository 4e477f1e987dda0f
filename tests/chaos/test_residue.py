"""No residue: whatever an application did with its clients, nothing of it is left."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from pymongo import monitoring
from pymongo_resilience_instrumentation.tools.testbed.member import Member
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.chaos.interruptions import INTERRUPTIONS
from support.chaos.play_scene import Scene
from support.chaos.residue import OpenSpans, no_residue
from support.chaos.residue_plays import PLAYS, many_clients, retried
from support.clients import fail_command

import pymongo_resilience
from pymongo_resilience import Config

pytestmark = pytest.mark.usefixtures("quick_census")


@pytest.fixture(scope="module")
def control(server: EmbeddedServer) -> Iterator[pymongo.MongoClient[Any]]:
    """Polls, so that with its first operation it has its last thread and its last socket.

    And often: the monitor is in a wrapper of the instrumentation that its last check began under.
    """
    use_once(server.uri)
    with pymongo.MongoClient(
        server.uri,
        appname="control",
        serverMonitoringMode="poll",
        heartbeatFrequencyMS=500,
        maxPoolSize=1,
    ) as client:
        client.admin.command("ping")
        yield client


def use_once(uri: str) -> None:
    """What the library makes once in a process is there then, whichever test is the first."""
    pymongo_resilience.instrument()
    with pymongo.MongoClient[Any](uri) as client:
        client.admin.command("ping")
    pymongo_resilience.uninstrument()


@pytest.fixture(params=["sync", "async"])
def scene(
    request: pytest.FixtureRequest, proxy: Any, database: str, control: pymongo.MongoClient[Any]
) -> Iterator[Scene]:
    runner = asyncio.Runner() if request.param == "async" else None
    if runner is not None:
        # The loop keeps the threads that resolve names: one is enough, there from the start.
        executor = ThreadPoolExecutor(1)
        runner.get_loop().set_default_executor(executor)
        executor.submit(int).result()
    made = Scene(
        request.param, runner, uri=proxy.uri, database=database, control=control, proxy=proxy
    )
    yield made
    made.close()


def instrument(
    listener: Any, tracer_provider: TracerProvider, meter_provider: Any, **options: Any
) -> None:
    pymongo_resilience.instrument(
        Config(timeout_ms=10_000, base_backoff_ms=1, **options),
        listeners=[listener],
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
    )


def providers(spans: OpenSpans) -> tuple[TracerProvider, MeterProvider]:
    tracer_provider = TracerProvider(shutdown_on_exit=False)
    tracer_provider.add_span_processor(spans)
    return tracer_provider, MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)


def use_sessions_and_cursors(scene: Scene) -> None:
    """Some wrappers are applied at their first use, and stay until ``uninstrument()``."""
    with scene.documents() as collection:
        scene.do(collection.find().to_list)
        unread = scene.do(collection.find, batch_size=2)
        scene.do(anext if scene.is_async else next, unread)
        scene.do(unread.close)
        with pymongo_resilience.override(timeout_ms=10_000):
            scene.do(collection.find().to_list)
            scene.do(scene.do(collection.aggregate, []).to_list)
        session = scene.do(collection.database.client.start_session)
        scene.do(session.start_transaction)
        scene.do(collection.find_one, session=session)
        scene.do(session.abort_transaction)
        scene.do(session.end_session)
        scene.do(collection.delete_many, {})
    scene.heard.clear()


@pytest.fixture
def spans(scene: Scene) -> Iterator[OpenSpans]:
    """Instrumented, every span counted, and all of it inside of a span of the application."""
    counted = OpenSpans()
    tracer_provider, meter_provider = providers(counted)
    span = tracer_provider.get_tracer("application").start_span("application")
    scene.context.run(context.attach, trace.set_span_in_context(span))
    instrument(scene, tracer_provider, meter_provider)
    use_sessions_and_cursors(scene)
    yield counted
    pymongo_resilience.uninstrument()


@pytest.mark.parametrize("play", PLAYS + INTERRUPTIONS, ids=lambda play: play.__name__)
def test_nothing_is_left_after(
    play: Callable[[Scene], None], scene: Scene, spans: OpenSpans
) -> None:
    with no_residue(spans=spans, context=scene.context, pause=scene.pause):
        play(scene)
    assert spans.ended > 0


WHAT_IS_OFF = {
    "circuit_breaker": "always",
    "command_comment": True,
    "retry_budget": "tokens",
}


@pytest.mark.parametrize("play", [retried, many_clients], ids=lambda play: play.__name__)
def test_nothing_is_left_with_all_switched_on_that_is_off_by_default(
    play: Callable[[Scene], None], scene: Scene
) -> None:
    spans = OpenSpans()
    instrument(scene, *providers(spans), **WHAT_IS_OFF)
    use_sessions_and_cursors(scene)
    try:
        with no_residue(spans=spans, context=scene.context, pause=scene.pause):
            play(scene)
    finally:
        pymongo_resilience.uninstrument()
    assert spans.ended > 0


OF_A_CALL = (
    r"_instrumentation\.(operation\.Operation|limits\.Limits|.*\.SpanState|.*\.CleanupOperation|.*\.CursorTimeout)"
    r"|timeline\.Run|driver\.csot\.ActiveTimeout"
)
"""A context keeps the call that was current in it, its timeout, and what it says of a cursor."""


class KeptContexts(monitoring.CommandListener):
    """As a connection or a task that is made inside of a call keeps the context it was made in."""

    def __init__(self) -> None:
        self.all: list[contextvars.Context] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.all.append(contextvars.copy_context())

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def test_a_context_kept_from_inside_a_call_keeps_no_timeout_in_force(
    scene: Scene, spans: OpenSpans
) -> None:
    kept = KeptContexts()

    def use() -> None:
        with scene.client(event_listeners=[kept]) as client:
            coll = client[scene.database].coll
            scene.do(coll.insert_many, [{} for _ in range(3)])
            with fail_command(scene.control, "find", closeConnection=True, times=1):
                scene.do(coll.find_one)
            with fail_command(scene.control, "insert", errorCode=121, times=1):
                with pytest.raises(pymongo.errors.PyMongoError):
                    scene.do(coll.insert_one, {})
            cursor = coll.find(batch_size=2)
            scene.do(cursor.to_list)

    # What is set and cached once, on first use, is no residue.
    use()
    kept.all.clear()
    with no_residue(spans=spans, context=scene.context, pause=scene.pause, allowed=OF_A_CALL):
        use()
    assert len(kept.all) > 4


UNCLOSED = (
    rf"descriptor: socket|task: .* {Member._serve.__qualname__}$"
    r"|_instrumentation\.operation\."
)
"""Of an async client that is never closed, pymongo 4.20 now and then leaves a connection to the
loop: without this library in 2 of 10 runs. The connection keeps the context that it was made in,
a call that has ended with it, and the test bed the other end. Sync clients leave nothing."""


def test_nothing_is_left_after_a_client_that_was_never_closed(
    scene: Scene, spans: OpenSpans
) -> None:
    def use() -> None:
        client = scene.new_client()
        scene.do(client[scene.database].coll.insert_one, {})

    allowed = UNCLOSED if scene.is_async else None
    with no_residue(spans=spans, context=scene.context, pause=scene.pause, allowed=allowed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            use()
            gc.collect()
    assert spans.ended > 0


GAUGES = (
    r"^(1 x (object: .*\.ServerGauges|entry: .*\._by_provider)"
    r"|\d x entry: .*\.ServerGauges\._without)$"
)
"""An SDK keeps the callbacks of its gauges for good, so a provider that lives has them once."""


@pytest.mark.parametrize("same_provider", [True, False])
def test_nothing_is_left_after_fifty_times_instrument_and_uninstrument(
    same_provider: bool, scene: Scene
) -> None:
    spans = OpenSpans()
    kept = providers(spans)

    def use() -> None:
        instrument(scene, *(kept if same_provider else providers(spans)))
        with scene.client() as client:
            scene.do(client[scene.database].coll.find_one)
        pymongo_resilience.uninstrument()

    use()  # What is made once in a process is made by now.
    allowed = GAUGES if same_provider else None
    with no_residue(spans=spans, context=scene.context, pause=scene.pause, allowed=allowed):
        for _ in range(50):
            use()
    assert spans.ended >= 100


def test_nothing_is_left_after_a_client_that_lives_through_uninstrument(scene: Scene) -> None:
    spans = OpenSpans()

    def use() -> None:
        instrument(scene, *providers(spans))
        with scene.client() as client:
            scene.do(client[scene.database].coll.insert_one, {})
            pymongo_resilience.uninstrument()
            scene.do(client[scene.database].coll.find_one)

    use()  # clients that live longer than the test keep what they were given
    with no_residue(spans=spans, context=scene.context, pause=scene.pause):
        use()
    assert spans.ended >= 1


@pytest.mark.parametrize("scene", ["async"], indirect=True)
def test_nothing_is_left_after_a_loop_that_ended_with_its_client_open(
    scene: Scene, spans: OpenSpans
) -> None:
    async def main() -> None:
        client: Any = pymongo.AsyncMongoClient(scene.uri)
        await client[scene.database].coll.insert_one({})

    with no_residue(spans=spans), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        asyncio.run(main())
        gc.collect()
    assert spans.ended >= 1
