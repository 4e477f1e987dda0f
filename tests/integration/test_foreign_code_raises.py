"""Samplers, span processors and log handlers that raise, and bugs of our own before the driver
runs: no operation fails by them, and what the application asked for is never dropped silently.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler
from pymongo.errors import InvalidOperation, WriteError
from pymongo.synchronous.collection import Collection
from pymongo_resilience_instrumentation.timeouts.precedence import TimeoutRules
from support.clients import SentCommands, Side
from support.telemetry import Instrument

import pymongo_resilience
from pymongo_resilience import bind, override
from pymongo_resilience.testbed import BlackHole, CutAfter, ReplicaSet

pytestmark = [pytest.mark.each_setup, pytest.mark.oldest]


class BadProcessor(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise OSError("baggage")


class BadSampler(Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError("baggage")

    def get_description(self) -> str:
        return "bad"


def _bad_processor() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BadProcessor())
    return provider


def _bad_sampler() -> TracerProvider:
    return TracerProvider(BadSampler(), shutdown_on_exit=False)


@pytest.fixture(params=[_bad_processor, _bad_sampler])
def provider(request: pytest.FixtureRequest, defaults: dict[str, Any]) -> Iterator[None]:
    pymongo_resilience.instrument(**defaults, tracer_provider=request.param())
    yield
    pymongo_resilience.uninstrument()


def test_what_was_asked_for_holds_without_a_span(
    provider: None, side: Side, proxy: ReplicaSet, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    coll = side.client(proxy.uri)[database].coll
    side.do(coll.insert_many, [{"_id": 0, "n": 0}, {"_id": 1, "n": "text"}])
    with override(atomic=True), pytest.raises(WriteError):
        side.do(coll.update_many, {}, {"$inc": {"n": 1}})
    assert side.do(coll.find_one, {"_id": 0}) == {"_id": 0, "n": 0}
    proxy.inject(CutAfter("update"))
    assert side.do(coll.update_many, {"_id": 0}, {"$inc": {"n": 1}}).modified_count == 1
    assert caplog.text.count("further errors are not logged") == 1


class BadHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("disk full")


@pytest.fixture
def bad_handler() -> Iterator[None]:
    handler, logger = BadHandler(), logging.getLogger("pymongo_resilience")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_log_handler_that_raises_fails_nothing(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    bad_handler: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    instrument(slow_ms=0)
    coll = side.client(proxy.uri)[database].coll
    proxy.inject(CutAfter("insert"))
    assert side.do(coll.insert_one, {}).acknowledged
    assert "disk full" in capfd.readouterr().err, "it is shown as logging shows it"


def _fail(*_: Any) -> None:
    raise LookupError("a bug of ours")


@pytest.mark.parametrize("asked", ["atomic", "timeout_ms"])
@pytest.mark.parametrize("how", ["block", "bound", "rule"])
def test_a_bug_of_ours_drops_nothing_silently(
    how: str,
    asked: str,
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sent: SentCommands,
) -> None:
    fields: Any = {asked: 5_000 if asked == "timeout_ms" else True}
    policies = {f"{database}.*": pymongo_resilience.Policy(**fields)} if how == "rule" else None
    instrument(policies=policies)
    coll = side.client(proxy.uri, event_listeners=[sent])[database].coll
    target = bind(coll, **fields) if how == "bound" else coll
    monkeypatch.setattr(TimeoutRules, "set_timeout", _fail)
    with override(**fields if how == "block" else {}):
        with pytest.raises(InvalidOperation, match=f"keeps {asked}="):
            side.do(target.update_many, {}, {"$set": {"n": 1}})
    assert not sent.named("update"), "nothing is sent"
    assert "internal error in pymongo-resilience before" in caplog.text


def test_a_bug_of_ours_fails_nothing_that_pymongo_does(
    side: Side,
    proxy: ReplicaSet,
    database: str,
    instrument: Instrument,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrument()
    coll = side.client(proxy.uri)[database].coll
    monkeypatch.setattr(TimeoutRules, "set_timeout", _fail)
    assert side.do(coll.insert_one, {}).acknowledged


class InterruptError(Exception):
    """Raised by a signal handler."""


def test_an_interrupted_with_transaction_leaves_no_locks(
    proxy: ReplicaSet, database: str, instrument: Instrument, control: pymongo.MongoClient[Any]
) -> None:
    """During its commit, which pymongo then takes for done. The session stays open."""
    instrument()

    def interrupt(*_: object) -> None:
        raise InterruptError

    main, before = threading.main_thread().ident, signal.signal(signal.SIGUSR1, interrupt)
    assert main is not None

    class Interrupting(pymongo.monitoring.CommandListener):
        def started(self, event: Any) -> None:
            if event.command_name == "commitTransaction":
                threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1)).start()

        def succeeded(self, event: Any) -> None: ...
        def failed(self, event: Any) -> None: ...

    control[database].coll.insert_one({"_id": 1})
    try:
        with (
            pymongo.MongoClient[Any](proxy.uri, event_listeners=[Interrupting()]) as client,
            client.start_session() as session,
        ):
            coll = client[database].coll

            def work(session: Any) -> None:
                coll.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
                proxy.inject(BlackHole(60))

            with pytest.raises(InterruptError):
                session.with_transaction(work)
            proxy.clear()

            client[database].other.find_one()
            with pymongo.timeout(5):
                control[database].coll.update_one({}, {"$set": {"n": 2}})
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_cancelled_with_transaction_leaves_no_locks(
    proxy: ReplicaSet, database: str, instrument: Instrument, control: pymongo.MongoClient[Any]
) -> None:
    instrument()
    control[database].coll.insert_one({"_id": 1})

    async def main() -> None:
        committing = asyncio.Event()

        class Committing(pymongo.monitoring.CommandListener):
            def started(self, event: Any) -> None:
                if event.command_name == "commitTransaction":
                    committing.set()

            def succeeded(self, event: Any) -> None: ...
            def failed(self, event: Any) -> None: ...

        async with (
            pymongo.AsyncMongoClient[Any](proxy.uri, event_listeners=[Committing()]) as client,
            client.start_session() as session,
        ):
            coll = client[database].coll

            async def work(session: Any) -> None:
                await coll.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
                proxy.inject(BlackHole(60))

            task = asyncio.create_task(session.with_transaction(work))
            await committing.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            proxy.clear()
            await client[database].other.find_one()

            def change() -> None:
                with pymongo.timeout(5):
                    control[database].coll.update_one({}, {"$set": {"n": 2}})

            await asyncio.to_thread(change)

    asyncio.run(main())


def test_a_wrapper_that_another_library_put_back_is_taken_off(
    instrument: Instrument, caplog: pytest.LogCaptureFixture
) -> None:
    """As by ``setattr(cls, name, getattr(cls, name))``, which wrapt binds."""
    original = vars(Collection)["find_one"]
    instrument()
    caplog.clear()
    setattr(Collection, "find_one", getattr(Collection, "find_one"))  # noqa: B009, B010 - its way
    pymongo_resilience.uninstrument()
    assert vars(Collection)["find_one"] is original
    assert "also wrapped" not in caplog.text
