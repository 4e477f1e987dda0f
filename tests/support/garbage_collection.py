"""What the garbage collector ends: who was called meanwhile, and coroutines that go no further."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

SET: ContextVar[Any] = ContextVar("set_where_a_span_ends", default=None)


class Watcher(SpanProcessor, logging.Handler):
    """Span processor, log handler and listener: all that others may see while something is
    collected. Sets a context variable where a span ends, as every processor that exports does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self._collects: int | None = None
        self.meanwhile: list[object] = []
        """What was seen from inside of a finalizer."""
        self.open: list[str] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.open.append(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.open.remove(span.name)
        self.ended.append(span)
        self.see(f"end of {span.name}")
        SET.set(span)

    def shutdown(self) -> None: ...

    def emit(self, record: logging.LogRecord) -> None:
        self.see(record.getMessage())

    def on_event(self, event: object) -> None:
        self.see(event)

    def see(self, what: object) -> None:
        if self._collects == threading.get_ident():
            self.meanwhile.append(what)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """The block ends something. Nobody of others is called, and no variable changes."""
        before = dict(contextvars.copy_context().items())
        self._collects = threading.get_ident()
        try:
            yield
        finally:
            self._collects = None
        assert self.meanwhile == []
        after = dict(contextvars.copy_context().items())
        assert {each.name for each in after} == {each.name for each in before}
        assert all(after[each] is before[each] for each in before)


class Cycle:
    """Nothing but the collector ends what it holds."""

    def __init__(self, held: object) -> None:
        self._held = held
        self._itself = self


def collect(watcher: Watcher, held: list[Any]) -> None:
    """By the collector, what nobody else holds."""
    gc.disable()
    try:
        Cycle(held.pop())
        with watcher.collecting():
            gc.collect(0)
    finally:
        gc.enable()


async def cancelled_after(coroutine: Coroutine[Any, Any, Any], count: int) -> bool:
    """It is cancelled once it has waited so often; whether it had finished by then."""
    if await steps(coroutine, count):
        return True
    with suppress(asyncio.CancelledError):
        await _cancelled(coroutine)
    return False


@types.coroutine
def _cancelled(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, None]:
    go_on: Callable[[Any], Any] = coroutine.throw
    value: Any = asyncio.CancelledError()
    while True:
        try:
            waited_for = go_on(value)
        except StopIteration:  # where the driver or asyncio drops it
            return
        try:
            value = yield waited_for
            go_on = coroutine.send
        except BaseException as error:  # noqa: BLE001 - as below
            go_on, value = coroutine.throw, error


@types.coroutine
def steps(coroutine: Coroutine[Any, Any, Any], count: int) -> Generator[Any, Any, bool]:
    """Let it wait so often and no more; whether it has finished by then."""
    go_on: Callable[[Any], Any] = coroutine.send
    value: Any = None
    for _ in range(count):
        try:
            waited_for = go_on(value)
        except StopIteration:
            return True
        try:
            value = yield waited_for
            go_on = coroutine.send
        except BaseException as error:  # noqa: BLE001 - what it waited for has failed
            go_on, value = coroutine.throw, error
    return False
