"""Everything the library shows while something runs, kept as text, channel by channel."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.canaries import spelled

import pymongo_resilience
from pymongo_resilience import OperationTimeoutError
from pymongo_resilience.events import Event

OURS = "pymongo_resilience"
"""What the names of our modules and of our loggers begin with."""


def of_span(span: ReadableSpan) -> Iterator[str]:
    yield span.to_json()
    yield from spelled([span.name, span.kind, span.status.description, span.attributes])
    yield from spelled([span.get_span_context(), span.parent, span.resource.attributes])
    yield from spelled([span.instrumentation_scope, *(link.attributes for link in span.links)])
    for event in span.events:
        yield from spelled([event.name, event.attributes])


class Log(logging.Handler):
    """What our loggers say, formatted as by default, and every field of each record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))
        self.texts.extend(spelled(vars(record)))


@contextlib.contextmanager
def listening(log: Log) -> Iterator[None]:
    """All loggers of ours at DEBUG, wherever they stand in the tree."""
    known = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    ours = [each for each in known if each.name.startswith(OURS)]
    top = {logging.getLogger(OURS), logging.getLogger(f"{OURS}_instrumentation")}
    levels = {each: each.level for each in {*ours, *top}}
    for each in levels:
        each.setLevel(logging.DEBUG)
    for each in top:
        each.addHandler(log)
    try:
        yield
    finally:
        for each, level in levels.items():
            each.setLevel(level)
        for each in top:
            each.removeHandler(log)


_asked: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
"""A class of one ``instrument()`` would keep all that belongs to it alive."""


def shows_itself(cls: type) -> bool:
    """Whether objects of a class of ours say more than their address."""
    known = _asked.get(cls)
    if known is None:
        # Some classes make a property of their module.
        known = _asked[cls] = str(cls.__module__).startswith(OURS) and (
            cls.__repr__ is not object.__repr__ or cls.__str__ is not object.__str__
        )
    return known


@dataclass
class Outputs:
    """Takes part as a listener: at each decision, every new object of ours is looked at."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    log: Log = field(default_factory=Log)
    reprs: set[str] = field(default_factory=set)
    warned: list[str] = field(default_factory=list)
    stderr: io.StringIO = field(default_factory=io.StringIO)
    events: list[Event] = field(default_factory=list)

    def on_event(self, event: Event, /) -> None:
        self.events.append(event)
        self.look()

    def look(self) -> None:
        """Keep ``repr`` and ``str`` of every object of ours, as a debugger could ask for them.

        Not of a timeout: it is handed to the application, which gets the server's text.
        """
        for each in gc.get_objects():
            cls = type(each)
            if shows_itself(cls) and not issubclass(cls, OperationTimeoutError):
                self.reprs.update((repr(each), str(each)))

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def channels(self) -> dict[str, list[str]]:
        data = self.reader.get_metrics_data()
        return {
            "spans": [text for span in self.spans() for text in of_span(span)],
            "metrics": [] if data is None else [data.to_json(), repr(data)],
            "log": self.log.texts,
            "reprs": sorted(self.reprs),
            "warnings": self.warned,
            "standard error": [self.stderr.getvalue()],
        }


@contextlib.contextmanager
def instrumented(**arguments: Any) -> Iterator[Outputs]:
    """The library at default settings, all it shows captured; taken off again at the end."""
    outputs = Outputs()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(outputs.exporter))
    meters = MeterProvider(
        [outputs.reader], exemplar_filter=AlwaysOnExemplarFilter(), shutdown_on_exit=False
    )
    with (
        warnings.catch_warnings(record=True) as warned,
        listening(outputs.log),
        contextlib.redirect_stderr(outputs.stderr),
    ):
        warnings.simplefilter("always")
        pymongo_resilience.instrument(
            **{
                "listeners": [outputs],
                "tracer_provider": tracers,
                "meter_provider": meters,
                **arguments,
            }
        )
        # What is there already is looked at once, at the end: each look takes in what is new.
        # What an earlier test has left is collected.
        gc.collect()
        gc.freeze()
        try:
            yield outputs
        finally:
            gc.unfreeze()
            outputs.look()
            pymongo_resilience.uninstrument()
            outputs.warned += [str(each) for each in warned]
