"""Deadlines from the incoming request: what a header says, and when the deadline applies."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st
from support.wsgi_asgi import ask_asgi, ask_wsgi

from pymongo_resilience import ConfigurationError, override
from pymongo_resilience.deadlines import (
    ASGIMiddleware,
    WSGIMiddleware,
    detached,
    remaining_ms,
    request_deadline,
)
from pymongo_resilience.deadlines.limits import RequestLimits
from pymongo_resilience.policies import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = "x-request-timeout-ms"


def left() -> float:
    found = remaining_ms()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("header", "value", "seconds"),
    [
        (HEADER, "500", 0.5),
        (HEADER, "0", 0.0),
        (HEADER, "2147483647", 30.0),
        ("X-Envoy-Expected-Rq-Timeout-Ms", "1250", 1.25),
        ("grpc-timeout", "500m", 0.5),
        ("grpc-timeout", "2S", 2.0),
        ("grpc-timeout", "1M", 30.0),
        ("grpc-timeout", "1H", 30.0),
        ("grpc-timeout", "250000u", 0.25),
        ("grpc-timeout", "1000000n", 0.001),
    ],
)
def test_what_a_header_says(header: str, value: str, seconds: float) -> None:
    limits = RequestLimits(header=header, max_ms=30_000, default_ms=None)
    assert limits.seconds_of_header(value) == pytest.approx(seconds)


HOSTILE = [
    *("-1", "-0", "+5", "1e3", "0x10", "1.5", "", "   ", "12,15", "NaN", "inf", "1_000", "5\x00"),
    *("2147483648", "9" * 400, "१२", "500m", "5 00", "{}", "5\r\nX-Other: 1", "null"),
]


@pytest.mark.parametrize("default_ms", [None, 2_000])
@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_count_as_none(
    value: str, default_ms: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    limits = RequestLimits(header=HEADER, max_ms=30_000, default_ms=default_ms)
    expected = None if default_ms is None else 2.0
    with caplog.at_level(logging.WARNING, "pymongo_resilience"):
        for _ in range(3):
            assert limits.seconds_of_header(value) == expected
    (record,) = caplog.records
    assert HEADER in record.getMessage()


@pytest.mark.parametrize("value", ["5", "500", "123456789m", "m", "5s", "-5m", "1.5S", "99999999H"])
def test_hostile_values_of_grpc_count_as_none(value: str) -> None:
    limits = RequestLimits(header="grpc-timeout", max_ms=None, default_ms=None)
    assert limits.seconds_of_header(value) is None


@given(st.text() | st.from_regex(r"[0-9.eE+-]{1,12}", fullmatch=True))
def test_no_value_raises_or_exceeds_the_maximum(value: str) -> None:
    for header in (HEADER, "grpc-timeout"):
        limits = RequestLimits(header=header, max_ms=1_000, default_ms=None)
        seconds = limits.seconds_of_header(value)
        assert seconds is None or 0 <= seconds <= 1


def test_every_wrong_argument_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RequestLimits(header="a header", max_ms=0, default_ms=-1)
    assert [each.partition("=")[0] for each in caught.value.problems] == [
        "max_ms",
        "default_ms",
        "header",
    ]
    with pytest.raises(ConfigurationError, match="at most max_ms"):
        RequestLimits(header=HEADER, max_ms=1_000, default_ms=2_000)
    for wrong in (-1, float("nan"), "500", True):
        with pytest.raises(ConfigurationError, match="timeout_ms"):
            request_deadline(timeout_ms=wrong)  # type: ignore[arg-type]


def test_a_block_ends_at_one_moment_and_nothing_of_it_is_left() -> None:
    assert remaining_ms() is None
    with request_deadline(timeout_ms=60_000):
        assert 59_000 < left() <= 60_000
        with override(timeout_ms=100):
            assert left() > 59_000
        with request_deadline(timeout_ms=1_000):
            assert left() <= 1_000
        with request_deadline(timeout_ms=90_000):
            assert left() <= 60_000, "the earlier one applies"
        with detached():
            assert remaining_ms() is None
            with request_deadline(timeout_ms=90_000):
                assert left() > 60_000
        assert left() <= 60_000
    assert remaining_ms() is None
    with request_deadline(timeout_ms=0):
        assert remaining_ms() == 0


def test_threads_have_none_of_it_and_copies_until_it_ends() -> None:
    seen: list[float | None] = []
    with request_deadline(timeout_ms=60_000):
        thread = threading.Thread(target=lambda: seen.append(remaining_ms()))
        thread.start()
        thread.join()
        copied = contextvars.copy_context()
        assert copied.run(left) > 0
    assert seen == [None]
    assert copied.run(remaining_ms) is None


def test_a_task_that_outlives_the_request_keeps_none_of_it() -> None:
    async def handle() -> tuple[float | None, float | None]:
        ended = asyncio.Event()

        async def in_background() -> tuple[float | None, float | None]:
            before = remaining_ms()
            await ended.wait()
            return before, remaining_ms()

        async with request_deadline(timeout_ms=60_000):
            task = asyncio.create_task(in_background())
            await asyncio.sleep(0)
        ended.set()
        return await task

    before, after = asyncio.run(handle())
    assert before is not None
    assert after is None


def asgi(app: Any, **options: Any) -> ASGIMiddleware:
    return ASGIMiddleware(app, header=HEADER, **options)


def test_asgi_ends_with_the_first_part_of_the_body() -> None:
    seen: list[float | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(remaining_ms())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        seen.append(remaining_ms())
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x", "more_body": more})
            seen.append(remaining_ms())  # what streams, and what runs in the background

    assert ask_asgi(asgi(app), {HEADER: "60000"}) == (200, b"xx")
    assert [each is None for each in seen] == [False, False, True, True]


@pytest.mark.parametrize("value", [None, "junk"])
@pytest.mark.parametrize("default_ms", [None, 1_000])
def test_asgi_without_a_header_has_the_default(value: str | None, default_ms: int | None) -> None:
    seen: list[float | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(remaining_ms())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    headers = {} if value is None else {HEADER: value}
    assert ask_asgi(asgi(app, default_ms=default_ms), headers)[0] == 200
    assert [each is None for each in seen] == [default_ms is None]


async def never_asgi(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("an expired request reached the application")


def test_an_expired_request_is_refused() -> None:
    status, body = ask_asgi(asgi(never_asgi), {HEADER: "0"})
    assert (status, body) == (504, b"the request's deadline had passed when it arrived\n")
    assert ask_wsgi(WSGIMiddleware(never_wsgi, header=HEADER), {HEADER: "0"}) == (504, body)


def never_wsgi(environ: Any, start_response: Any) -> Any:
    raise AssertionError("an expired request reached the application")


def test_websockets_and_the_lifespan_are_left_alone() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["type"], remaining_ms()))

    async def nothing(*_: Any) -> Any: ...

    for kind in ("websocket", "lifespan"):
        scope = {"type": kind, "headers": [(HEADER.encode(), b"0")]}
        asyncio.run(asgi(app, default_ms=5)(scope, nothing, nothing))
    assert seen == [("websocket", None), ("lifespan", None)]


def test_the_next_request_of_a_connection_has_its_own_deadline() -> None:
    """The server handles both in one task, and so in one context."""
    seen: list[float | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(remaining_ms())
        if len(seen) == 1:
            raise ValueError("of the application")

    async def nothing(*_: Any) -> Any: ...

    async def connection() -> None:
        handle = asgi(app)
        for headers in ([(HEADER.encode(), b"60000")], []):
            with contextlib.suppress(ValueError):
                await handle({"type": "http", "headers": headers}, nothing, nothing)

    asyncio.run(connection())
    assert [each is None for each in seen] == [False, True]


def wsgi_list(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [])
    return [b"%r" % (remaining_ms() is None)]


def wsgi_stream(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [])
    return (b"%r" % (remaining_ms() is None) for _ in range(2))


def wsgi_generator(environ: Any, start_response: Any) -> Iterator[bytes]:
    assert remaining_ms() is not None
    start_response("200 OK", [])
    yield b"%r" % (remaining_ms() is None)
    yield b"%r" % (remaining_ms() is None)


@pytest.mark.parametrize(
    ("app", "body"),
    [(wsgi_list, b"False"), (wsgi_stream, b"TrueTrue"), (wsgi_generator, b"FalseTrue")],
)
def test_wsgi_ends_when_the_response_has_started(app: Any, body: bytes) -> None:
    handle = WSGIMiddleware(app, header=HEADER)
    assert ask_wsgi(handle, {HEADER: " 60000 "}) == (200, body)
    assert remaining_ms() is None, "nothing is left in the server's thread"


def test_a_wsgi_response_that_nobody_reads_leaves_nothing() -> None:
    handle = WSGIMiddleware(wsgi_generator, header=HEADER)
    environ = {"HTTP_X_REQUEST_TIMEOUT_MS": "60000"}
    body = handle(environ, lambda *_: None)
    assert remaining_ms() is None
    next(iter(body))
    assert remaining_ms() is None
    del body
    gc.collect()


def test_without_a_header_nothing_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a block was made")

    monkeypatch.setattr(blocks.Block, "__init__", refuse)
    assert ask_wsgi(WSGIMiddleware(wsgi_list, header=HEADER), {}) == (200, b"True")
