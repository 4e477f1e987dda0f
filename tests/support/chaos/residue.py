"""No residue: nothing is in use after a piece of work that was not in use before it.

Threads, tasks, descriptors, open spans, context variables, and what the library itself keeps:
``census.py`` says what of each there is, this file what is left over::

    with no_residue(spans=open_spans):
        ...                               # makes clients, uses them, closes them
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from support.chaos import census

POLL = 0.02
"""Seconds between two looks."""


class ResidueError(AssertionError):
    """Names each thing that was left, and how many of it."""


class OpenSpans(SpanProcessor):
    """Give it to the TracerProvider: the spans that were started and not ended.

    The names are right with any number of threads, ``ended`` with one.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self.ended = 0

    def on_start(self, span: Span, parent_context: object = None) -> None:
        assert span.context is not None
        self._names[span.context.span_id] = span.name

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        del self._names[span.context.span_id]
        self.ended += 1

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """The id and the name of each."""
        return iter(self._names.copy().items())


def _left(now: census.Inventory, before: census.Inventory) -> list[str]:
    lines = []
    for kind, things in now.items():
        lines += _difference(kind, things, before[kind])
    # Whoever sets a variable and takes it back must not take back what was there before.
    variables = "context variable"
    return lines + _difference(f"lost {variables}", before[variables], now[variables])


def _difference(kind: str, things: census.Things, others: census.Things) -> list[str]:
    names = Counter(name for key, name in things.items() if key not in others)
    return [f"{count} x {kind}: {name}" for name, count in sorted(names.items())]


@contextlib.contextmanager
def no_residue(
    *,
    spans: Iterable[tuple[int, str]] = (),
    context: Context | None = None,
    within: float = 10.0,
    allowed: str | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Raises :class:`ResidueError` if the block leaves something behind, ``within`` seconds later.

    A block that raises is not looked at. The driver's threads and sockets take a moment to end:
    the look is repeated until nothing is left.

    :param spans: the spans to count; without it, none are.
    :param context: whose variables count; by default the caller's.
    :param allowed: a regular expression; what matches it may be left. Say why.
    :param pause: what passes the seconds between two looks; with an event loop that only runs
        when it is told to, this is what runs it.
    """

    def take() -> census.Inventory:
        return census.take(contextvars.copy_context() if context is None else context, spans)

    def left() -> list[str]:
        lines = _left(take(), before)
        return [line for line in lines if allowed is None or not re.search(allowed, line)]

    before = take()
    yield
    end = time.monotonic() + within
    while (found := left()) and time.monotonic() < end:
        pause(POLL)
    if found:
        raise ResidueError(f"left after {within:g} s:\n  " + "\n  ".join(found))
