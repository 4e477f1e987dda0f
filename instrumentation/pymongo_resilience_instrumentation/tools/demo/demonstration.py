"""Runs the fault script step by step on all sides, and prints the verdict and a table."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import time
from typing import Any, Final

from pymongo import MongoClient
from rich.console import Console

from pymongo_resilience_instrumentation.tools.testbed import EmbeddedServer, ReplicaSet
from pymongo_resilience_instrumentation.tools.testbed.server import described

from .fault_script import TIMELINE, Scene
from .result import Outcome, Record, Result, Side
from .sides import Settings, processes
from .workload import Ledger, Step, prepare

_PACE: Final = 0.02
_WIDTH: Final = 110
"""Columns of the output. In a narrower one, the headings of the table are broken up."""


def run(options: argparse.Namespace) -> int:
    """Run the demonstration.

    Returns:
        0 if our side lost no write, duplicated no write, and showed no error; otherwise 1.

    Raises:
        TestbedError: The demonstration cannot run to its end.
        OSError: A result file cannot be written.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    result = _play(options, console)
    console.print(result.report())
    if options.json is not None:
        options.json.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    if options.svg is not None:
        canvas = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
        canvas.print(result.report())
        canvas.save_svg(str(options.svg), title="pymongo-resilience demo")
    return 1 if result.problems() else 0


def _play(options: argparse.Namespace, console: Console) -> Result:
    records = {side: Record() for side in Side}
    ledgers = {side: Ledger() for side in Side}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(options.server))
        direct = stack.enter_context(MongoClient[dict[str, Any]](server.uri))
        for side in Side:
            prepare(direct[side.database])
        replica_sets = {side: stack.enter_context(ReplicaSet(server.address)) for side in Side}
        # Only our side exports spans and metrics.
        otlp = {Side.OURS: options.otlp}
        settings = [Settings(side, replica_sets[side].uri, otlp.get(side)) for side in Side]
        ask = stack.enter_context(processes(settings))

        def run_one(step: Step, scene: Scene) -> dict[Side, Outcome]:
            # The pace of the load, or the time without use after which connections are closed.
            time.sleep(max(_PACE, scene.idle))
            for replica_set in replica_sets.values():
                for fault in scene.faults():
                    replica_set.inject(fault)
            outcomes: dict[Side, Outcome] = ask(step)
            for side, replica_set in replica_sets.items():
                outcome = outcomes[side]
                records[side].add(outcome)
                replica_set.clear()
                ledgers[side].record(step, acknowledged=outcome.error is None)
            return outcomes

        started = end = time.monotonic()
        numbers = itertools.count()
        for phase in TIMELINE:
            # Count from the start of the run: a phase that takes too long shortens the later ones.
            end += phase.share * options.seconds
            errors = dict.fromkeys(Side, 0)
            for played, scene in enumerate(phase.scenes(options.seed)):
                if played >= phase.shortest and time.monotonic() >= end:
                    break
                for side, each in run_one(Step(next(numbers), scene.kind), scene).items():
                    errors[side] += each.error is not None
            shown = ", ".join(f"{side.title} {count}" for side, count in errors.items())
            console.print(f"{phase.name:<14} errors: {shown}", highlight=False)
        duration = time.monotonic() - started
        for side, record in records.items():
            record.faults = replica_sets[side].injected()
            record.duplicated, record.lost = ledgers[side].balance(direct[side.database])
        ask(None)
        return Result(described(server.address), options.seed, options.seconds, duration, records)
