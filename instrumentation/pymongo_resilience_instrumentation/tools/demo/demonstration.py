"""Puts the demonstration together, and runs the timeline on all sides step by step."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import time
from collections import Counter
from functools import partial
from typing import Any, Final

from pymongo import MongoClient
from rich.console import Console

from pymongo_resilience_instrumentation.tools.report import Recorder
from pymongo_resilience_instrumentation.tools.testbed import EmbeddedServer, ReplicaSet
from pymongo_resilience_instrumentation.tools.testbed.server import described

from .fault_script import TIMELINE, Scene
from .picture import phase_lines, report, save_svg
from .result import Outcome, Result, Side, Tally
from .sides import Processes, Settings
from .workload import Ledger, Step, prepare

_WIDTH_OF_PIPES: Final = 116
_PACE: Final = 0.02


def run(options: argparse.Namespace) -> int:
    """Run the demonstration; returns 0 only if our side lost, duplicated and showed nothing.

    Raises TestbedError if it cannot run to its end, OSError for a file.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_PIPES
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
        faults: dict[Side, Counter[str]] = {side: Counter() for side in Side}

        def run_one(step: Step, scene: Scene) -> None:
            # Part of the script: the load's rhythm, or the silence in which connections age.
            time.sleep(max(_PACE, scene.idle))
            injected = {side: scene.faults() for side in Side}
            for side, replica_set in replica_sets.items():
                for fault in injected[side]:
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
                for fault in injected[side]:
                    faults[side][type(fault).__name__] += fault.injected
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
            faults=faults,
        )
