"""Runs the timeline on all sides step by step, and shows a table of them, a trace, the verdict."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from pymongo import MongoClient
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from pymongo_resilience_instrumentation.telemetry import semconv
from pymongo_resilience_instrumentation.tools.report import Recorder
from pymongo_resilience_instrumentation.tools.testbed import EmbeddedServer, ReplicaSet
from pymongo_resilience_instrumentation.tools.testbed.server import described

from .fault_script import TIMELINE, Scene
from .result import Branch, Outcome, Record, Result, Side, Tally
from .sides import Processes, Settings
from .workload import Balance, Ledger, Step, prepare

_PACE: Final = 0.02


_WIDTH: Final = 116


def milliseconds(seconds: float) -> str:
    """A duration (seconds) for people; a dash for none."""
    return "-" if math.isnan(seconds) else f"{seconds * 1000:.1f} ms"


_LABELS: Final[dict[str, Callable[[str], str]]] = {
    semconv.TXN_NUMBER: "txnNumber {}".format,
    semconv.EXCEPTION_TYPE: lambda name: name.rpartition(".")[2],
    semconv.ATTEMPTS: "{} attempts".format,
    semconv.OUTCOME: str,
    semconv.DEADLINE: "deadline {} s".format,
    semconv.REASON: str,
    semconv.DELAY: lambda delay: f"delay {milliseconds(float(delay))}",
    semconv.RULE: str,
}
"""How a span's attributes read, in a few words."""


def phase_lines(tally: Tally, phase: str) -> str:
    cells = {side: _phase_cell(tally.of(side, phase)).plain.strip() for side in Side}
    return "\n".join(f"{phase:<14} {side.title:<19} {cell}" for side, cell in cells.items())


def _sides_table(tally: Tally, balances: Mapping[Side, Balance]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for side in Side:
        table.add_column(side.title)
    for phase in TIMELINE:
        cells = [_phase_cell(tally.of(side, phase.name)) for side in Side]
        table.add_row(f"  {phase.name}", *cells, end_section=phase is TIMELINE[-1])
    records = [tally.of(side) for side in Side]
    table.add_row("operations", *(str(record.operations) for record in records))
    table.add_row("errors seen", *(_bad(record.errors.total()) for record in records))
    table.add_row("duplicated writes", *(_bad(balances[side].duplicated) for side in Side))
    table.add_row("lost writes", *(_bad(balances[side].lost) for side in Side))
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        table.add_row(label, *(milliseconds(record.quantile(share)) for record in records))
    table.add_section()
    retries = tally.of(Side.OURS).repeated
    table.add_row("retries of the library", "", "", str(retries.total()))
    for reason, count in retries.items():
        table.add_row(f"  {reason}", "", "", str(count))
    return table


def _phase_cell(record: Record) -> Text:
    if not record.operations:
        return Text("-", style="dim")
    errors, repeated = record.errors.total(), record.repeated.total()
    cell = Text(f"{record.operations} ops")
    if errors:
        cell.append(", ").append(f"{errors} error" + "s" * (errors > 1), "bold red")
    if repeated:
        cell.append(", ").append(f"{repeated} retr" + ("y" if repeated == 1 else "ies"), "yellow")
    return cell


def _bad(number: int) -> Text:
    return Text(str(number), style="bold red" if number else "green")


def report(result: Result) -> RenderableType:
    """Table, trace and verdict, for a console of any width from 100 on."""
    parts: list[RenderableType] = [_sides_table(result.tally, result.balances)]
    if result.trace:
        title = f"One retried operation of {Side.OURS.title}"
        tree = Tree(_line(result.trace[0]))
        for branch in result.trace[1:]:
            tree.add(_line(branch))
        parts += [Text(), Text(title, style="bold"), tree, Text()]
    style = "red" if result.problems() else "green"
    parts.append(Panel("\n".join(result.verdict()), title="verdict", border_style=style))
    return Group(*parts)


def _line(branch: Branch) -> Text:
    """The start and the duration of a span, or an event between them."""
    line = Text()
    line.append(branch.name, "yellow" if branch.seconds is None else "bold")
    line.append(f"  at {milliseconds(branch.start)}", "dim")
    if branch.seconds is not None:
        line.append(f"  took {milliseconds(branch.seconds)}", "cyan")
        line.append("  failed" if branch.failed else "  ok", "red" if branch.failed else "green")
    for name, value in branch.attributes.items():
        if name in _LABELS:
            line.append("  " + _LABELS[name](value), "dim")
    return line


def save_svg(result: Result, path: str) -> None:
    """Draw the report as a picture; raises ``OSError`` where the file cannot be written."""
    canvas = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    canvas.print(report(result))
    canvas.save_svg(path, title="pymongo-resilience demo")


def run(options: argparse.Namespace) -> int:
    """Run the demonstration; returns 0 only if our side lost, duplicated and showed nothing.

    Raises TestbedError if it cannot run to its end, OSError for a file.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    result = _play(options, console)
    console.print(report(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    if options.svg is not None:
        save_svg(result, str(options.svg))
    return 1 if result.problems() else 0


def _play(options: argparse.Namespace, console: Console) -> Result:
    tally = Tally()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(options.server))
        direct = stack.enter_context(MongoClient[dict[str, Any]](server.uri))
        for side in Side:
            prepare(direct[side.database])
        replica_sets = {side: stack.enter_context(ReplicaSet(server.address)) for side in Side}
        # Spans and metrics are our side's alone.
        otlp = {Side.OURS: options.otlp}
        settings = [Settings(side, replica_sets[side].uri, otlp.get(side)) for side in Side]
        processes = stack.enter_context(Processes(settings))
        recorder = None
        if options.record is not None:
            recorder = stack.enter_context(Recorder(options.record))
            for side, replica_set in replica_sets.items():
                replica_set.observer = partial(recorder.fault, side=side.value)
        ledgers = {side: Ledger() for side in Side}

        def run_one(step: Step, scene: Scene) -> None:
            # Part of the script: the load's rhythm, or the silence in which connections age.
            time.sleep(max(_PACE, scene.idle))
            for replica_set in replica_sets.values():
                for fault in scene.faults():
                    replica_set.inject(fault)
            began = time.time()
            outcomes: dict[Side, Outcome] = processes.ask(step)
            tally.add(step.phase, outcomes)
            for side, replica_set in replica_sets.items():
                outcome = outcomes[side]
                if recorder is not None:
                    recorder.operation(
                        step.kind.value,
                        outcome.seconds,
                        error=outcome.error,
                        server=replica_set.members[0].host_and_port,
                        repeated=outcome.repeated,
                        side=side.value,
                        at=began,
                    )
                replica_set.clear()
                ledgers[side].record(step, acknowledged=outcome.error is None)

        started = end = time.monotonic()
        numbers = itertools.count()
        for phase in TIMELINE:
            # From the beginning, so that a phase which ran over shortens the later ones.
            end += phase.share * options.seconds
            for played, scene in enumerate(phase.scenes(options.seed)):
                if played >= phase.shortest and time.monotonic() >= end:
                    break
                run_one(Step(next(numbers), scene.kind, phase.name), scene)
            console.print(phase_lines(tally, phase.name), highlight=False)
        duration = time.monotonic() - started
        balances = {side: ledger.balance(direct[side.database]) for side, ledger in ledgers.items()}
        for side, balance in balances.items():
            if recorder is not None:
                recorder.balance(balance.lost, balance.duplicated, side=side.value)
        return Result(
            server=described(server.address),
            seed=options.seed,
            seconds=options.seconds,
            duration=duration,
            tally=tally,
            trace=processes.ask(None)[Side.OURS],
            balances=balances,
            faults={side: each.injected() for side, each in replica_sets.items()},
        )
