"""docs/trace.svg: the trace of one retried write, drawn from the spans that the SDK exports.

    python bench/trace_figure.py [FILE]

Two replies of an update_one are lost. Times differ from run to run; nothing else does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pymongo import MongoClient

from pymongo_resilience import Config, instrument, uninstrument
from pymongo_resilience.testbed import CutAfter, Latency, ReplicaSet

FILE = Path(__file__).parent.parent / "docs" / "trace.svg"
TITLE = "One update_one whose reply is lost twice: three attempts, applied once"
WIDTH, NAMES, ROW, TOP = 900, 230, 46, 62
STYLE = (
    "<style>.page{fill:#fff}text{fill:#1f2328}"
    "@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}}</style>"
)
COLOURS = {"ok": "#0072B2", "failed": "#D55E00", "around": "#8c8c8c"}


def retried_write() -> Sequence[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(Config(timeout_ms=20_000), tracer_provider=provider)
    try:
        with ReplicaSet() as replica_set, MongoClient(replica_set.uri) as client:
            orders = client.shop.orders
            orders.insert_one({"_id": 1, "visits": 0})
            exporter.clear()
            replica_set.inject(Latency(0.004))
            replica_set.inject(CutAfter("update", times=2))
            with provider.get_tracer("shop").start_as_current_span("PUT /orders/{id}"):
                orders.update_one({"_id": 1}, {"$inc": {"visits": 1}})
            spans = exporter.get_finished_spans()
            replica_set.clear()
            if orders.find_one({"_id": 1}) != {"_id": 1, "visits": 1}:
                raise RuntimeError("the write was not applied once")
    finally:
        uninstrument()
    return [span for span in spans if span.name not in {"endSessions admin", "endSessions"}]


def in_order(
    spans: Sequence[ReadableSpan], parent: int | None = None, depth: int = 0
) -> Iterator[tuple[int, ReadableSpan]]:
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent:
            yield depth, span
            yield from in_order(spans, span.get_span_context().span_id, depth + 1)


def draw(spans: Sequence[ReadableSpan]) -> str:
    rows = list(in_order(spans))
    begin = min(span.start_time or 0 for span in spans)
    end = max(span.end_time or 0 for span in spans)
    height = TOP + ROW * len(rows) + 24

    def x(time: int) -> float:
        return NAMES + (WIDTH - NAMES - 20) * (time - begin) / (end - begin)

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="system-ui, sans-serif" font-size="13">'
        ),
        STYLE,
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        _text(12, 22, TITLE, "b"),
    ]
    for quarter in range(5):
        time = begin + (end - begin) * quarter // 4
        anchor = ("start", "middle", "middle", "middle", "end")[quarter]
        parts += [
            (
                f'<line x1="{x(time):.1f}" x2="{x(time):.1f}" y1="{TOP - 10}" y2="{height - 24}" '
                'stroke="#8884"/>'
            ),
            _text(x(time), TOP - 14, f"{(time - begin) / 1e6:.1f} ms", "m", anchor),
        ]
    for number, (depth, span) in enumerate(rows):
        parts += _row(span, depth, TOP + ROW * number, x)
    reasons = {
        str((event.attributes or {})["pymongo_resilience.reason"])
        for _, span in rows
        for event in span.events
        if event.name == "retry.scheduled"
    }
    legend = f"\u25bc retry.scheduled: {', '.join(sorted(reasons))}"
    return "\n".join([*parts, _text(NAMES, height - 8, legend, "m"), "</svg>", ""])


def _row(span: ReadableSpan, depth: int, y: float, x: Callable[[int], float]) -> Iterator[str]:
    start, end = span.start_time or 0, span.end_time or 0
    attributes = span.attributes or {}
    failed = span.status.status_code is StatusCode.ERROR
    colour = COLOURS["around" if not attributes else "failed" if failed else "ok"]
    yield _text(12 + 18 * depth, y + 17, span.name)
    yield (
        f'<rect x="{x(start):.1f}" y="{y + 5}" width="{max(x(end) - x(start), 2):.1f}" height="16" '
        f'rx="2" fill="{colour}"/>'
    )
    said = [f"{(end - start) / 1e6:.1f} ms"]
    if "db.mongodb.txn_number" in attributes:
        said.append(f"txn_number {attributes['db.mongodb.txn_number']}")
        said.append(str(attributes.get("error.type", "ok")))
    if "pymongo_resilience.outcome" in attributes:
        said.append(f"{attributes['pymongo_resilience.attempts']} attempts")
        said.append(str(attributes["pymongo_resilience.outcome"]))
    right = x(start) > NAMES + (WIDTH - NAMES) * 0.6
    place = x(end) if right else x(start)
    yield _text(place, y + 35, ", ".join(said), "m", "end" if right else "start")
    for event in span.events:
        if event.name == "retry.scheduled":
            at = x(event.timestamp)
            yield f'<path d="M{at:.1f} {y + 4} l5 -7 h-10 z" fill="{COLOURS["failed"]}"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    how = {"b": ' font-weight="600"', "m": ' opacity="0.75" font-size="11"'}.get(style, "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{how}>{escape(text)}</text>'


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    file.write_text(draw(retried_write()))
    print(file)
