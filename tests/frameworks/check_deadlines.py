"""Deadlines of requests in gRPC and Celery, with the real packages: see check_examples.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import celery
import grpc
import grpc.aio
import pytest
from celery.contrib.testing.worker import start_worker

from pymongo_resilience.deadlines import (
    connect_celery,
    grpc_aio_interceptor,
    grpc_interceptor,
    remaining_ms,
)


def shown() -> bytes:
    left = remaining_ms()
    return b"none" if left is None else b"%d" % left


class Seen:
    """How often a method was called."""

    calls = 0


def handlers(seen: Seen) -> dict[str, Any]:
    def unary(request: bytes, context: Any) -> bytes:
        seen.calls += 1
        return shown()

    def streaming(request: bytes, context: Any) -> Iterator[bytes]:
        seen.calls += 1
        yield shown()
        yield shown()

    def requests(items: Iterator[bytes], context: Any) -> bytes:
        list(items)
        return shown()

    def both(items: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for _ in items:
            yield shown()

    return {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Streaming": grpc.unary_stream_rpc_method_handler(streaming),
        "Requests": grpc.stream_unary_rpc_method_handler(requests),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }


def aio_handlers(seen: Seen) -> dict[str, Any]:
    async def unary(request: bytes, context: Any) -> bytes:
        seen.calls += 1
        return shown()

    async def streaming(request: bytes, context: Any) -> AsyncIterator[bytes]:
        seen.calls += 1
        yield shown()
        await asyncio.sleep(0)
        yield shown()

    async def requests(items: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in items:
            pass
        return shown()

    async def both(items: AsyncIterator[bytes], context: Any) -> None:
        async for _ in items:
            await context.write(shown())

    return {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Streaming": grpc.unary_stream_rpc_method_handler(streaming),
        "Requests": grpc.stream_unary_rpc_method_handler(requests),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }


@contextmanager
def sync_server(seen: Seen, **options: int) -> Iterator[int]:
    # One thread: what a call leaves there, the next one has.
    server = grpc.server(ThreadPoolExecutor(1), interceptors=[grpc_interceptor(**options)])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Test", handlers(seen)),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@contextmanager
def aio_server(seen: Seen, *, sync_methods: bool = False, **options: int) -> Iterator[int]:
    ports: list[int] = []
    ready = threading.Event()
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        interceptor = grpc_aio_interceptor(**options)
        server = grpc.aio.server(interceptors=[interceptor])
        made = handlers(seen) if sync_methods else aio_handlers(seen)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", made),))
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
        ready.set()
        await stopped.wait()
        await server.stop(None)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    try:
        yield ports[0]
    finally:
        stops[0]()
        thread.join()


def sync_in_aio(seen: Seen, **options: int) -> Any:
    return aio_server(seen, sync_methods=True, **options)


@pytest.fixture(params=[sync_server, aio_server, sync_in_aio], ids=lambda each: each.__name__)
def serve(request: pytest.FixtureRequest) -> Any:
    return request.param


def channel_to(port: int) -> Any:
    return grpc.insecure_channel(f"127.0.0.1:{port}")


def call_each(channel: Any, timeout: float | None) -> list[bytes]:
    """What each kind of method has shown."""
    path = "/test.Test/"
    items = [b"1", b"2"]
    return [
        channel.unary_unary(f"{path}Unary")(b"", timeout=timeout),
        *channel.unary_stream(f"{path}Streaming")(b"", timeout=timeout),
        channel.stream_unary(f"{path}Requests")(iter(items), timeout=timeout),
        *channel.stream_stream(f"{path}Both")(iter(items), timeout=timeout),
    ]


def test_each_kind_of_method_has_what_its_caller_gives(serve: Any) -> None:
    with (
        serve(Seen(), max_ms=30_000) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        lefts = call_each(channel, 20)
        assert all(15_000 < int(each) <= 21_000 for each in lefts), lefts
        assert all(25_000 < int(each) <= 31_000 for each in call_each(channel, 500))
        assert call_each(channel, None) == [b"none"] * 6, "and nothing of the calls before"


def test_without_a_deadline_a_call_has_the_default(serve: Any) -> None:
    with (
        serve(Seen(), default_ms=700) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert all(0 < int(each) <= 700 for each in call_each(channel, None))


class Context(SimpleNamespace):
    """Of a call that waited longer for its thread than its caller waits."""

    def time_remaining(self) -> float:
        return -0.1

    def abort(self, code: Any, text: str) -> Any:
        raise RuntimeError(code, text)


class AioContext(Context):
    async def abort(self, code: Any, text: str) -> Any:
        raise RuntimeError(code, text)


EXPIRED = (grpc.StatusCode.DEADLINE_EXCEEDED, "the request's deadline had passed when it arrived")


@pytest.mark.parametrize("kind", ["Unary", "Streaming"])
def test_a_call_that_arrives_expired_is_refused(kind: str) -> None:
    seen = Seen()
    wrapped = grpc_interceptor().intercept_service(lambda _: handlers(seen)[kind], None)
    behavior = wrapped.unary_unary or wrapped.unary_stream
    with pytest.raises(RuntimeError) as caught:
        behavior(b"", Context())
    assert caught.value.args == EXPIRED

    async def found(_: Any) -> Any:
        return aio_handlers(seen)[kind]

    async def run() -> None:
        wrapped = await grpc_aio_interceptor().intercept_service(found, None)
        if kind == "Unary":
            await wrapped.unary_unary(b"", AioContext())
        else:
            async for _ in wrapped.unary_stream(b"", AioContext()):
                pass

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(run())
    assert caught.value.args == EXPIRED
    assert seen.calls == 0


def test_a_stream_that_is_given_up_leaves_nothing_in_its_thread() -> None:
    with sync_server(Seen()) as port, channel_to(port) as channel:
        stream = channel.unary_stream("/test.Test/Streaming")(b"", timeout=30)
        next(stream)
        stream.cancel()
        assert channel.unary_unary("/test.Test/Unary")(b"") == b"none"


def test_a_method_that_does_not_exist_is_left_to_grpc(serve: Any) -> None:
    with serve(Seen()) as port, channel_to(port) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/test.Test/Other")(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture
def worker() -> Iterator[Any]:
    app = celery.Celery("test", broker="memory://", backend="cache+memory://")
    app.conf.worker_hijack_root_logger = False

    @app.task
    def left() -> float | None:
        return remaining_ms()

    @app.task(soft_time_limit=5, time_limit=9)
    def limited() -> float | None:
        return remaining_ms()

    app.left, app.limited = left, limited
    with start_worker(app, perform_ping_check=False, pool="threads", concurrency=1):
        yield app


def result(sent: Any) -> float | None:
    found: float | None = sent.get(timeout=20)
    return found


def test_a_task_ends_by_its_limits_and_its_header(worker: Any) -> None:
    header = "x-request-timeout-ms"
    disconnect = connect_celery(header=header, max_ms=60_000)
    try:
        assert result(worker.left.delay()) is None
        with_header = result(worker.left.apply_async(headers={header: 500}))
        assert with_header is not None
        assert 0 < with_header <= 500
        limited = result(worker.limited.delay())
        assert limited is not None
        assert 1_000 < limited <= 5_000
        both = result(worker.limited.apply_async(headers={header: 500}))
        assert both is not None
        assert 0 < both <= 500
        for hostile in (-5, "soon", 1e99, {"a": 1}):
            assert result(worker.left.apply_async(headers={header: hostile})) is None
        expired = result(worker.left.apply_async(headers={header: 0}))
        assert expired == 0
        assert result(worker.left.delay()) is None, "nothing is left in the worker's thread"
    finally:
        disconnect()
    assert result(worker.left.apply_async(headers={header: 500})) is None
