"""Puts the demonstration together, and runs the timeline on all sides step by step."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pymongo import MongoClient
from rich.console import Console

from pymongo_resilience_instrumentation.tools.report import Recorder
from pymongo_resilience_instrumentation.tools.testbed import EmbeddedServer, ReplicaSet
from pymongo_resilience_instrumentation.tools.testbed.server import described

from .closing_report import report, save_svg
from .contenders import Side
from .fault_script import TIMELINE, Scene
from .live_view import shown
from .process_pool import ProcessPool
from .result import Result
from .side_process import Settings
from .tally import Tally
from .workload import Ledger, Step, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from .live_view import Display
    from .tally import Outcome


_TRACED_PHASE: Final = "cut after"
_WIDTH_OF_PIPES: Final = 116


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked for."""

    seconds: float
    seed: int
    otlp: str | None = None
    json: Path | None = None
    svg: Path | None = None
    record: Path | None = None
    server: str | None = None


def run(options: Options, console: Console | None = None) -> int:
    """Run the demonstration; returns 0 only if our side lost, duplicated and showed nothing.

    Raises DemoError or TestbedError if it could not run to its end, OSError where a file cannot
    be written.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_PIPES
    result = play(options, console)
    console.print(report(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    if options.svg is not None:
        save_svg(result, str(options.svg))
    return 1 if result.problems() else 0


def play(options: Options, console: Console) -> Result:
    """Run the workload and read the ledger; raises DemoError or TestbedError."""
    tally = Tally()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(options.server))
        direct = stack.enter_context(MongoClient[dict[str, Any]](server.uri))
        for side in Side:
            prepare(direct[side.database])
        replica_sets = {side: stack.enter_context(ReplicaSet(server.address)) for side in Side}
        settings = [
            Settings(side, replica_sets[side].uri, options.otlp, _TRACED_PHASE) for side in Side
        ]
        process_pool = stack.enter_context(ProcessPool(settings))
        recorder = None
        if options.record is not None:
            recorder = stack.enter_context(Recorder(options.record))
            replica_sets[Side.OURS].observer = recorder.fault
        runner = Runner(process_pool, replica_sets, tally, recorder)
        started = time.monotonic()
        with shown(tally, options.seconds, console) as display:
            runner.run(options.seconds, options.seed, display)
        duration = time.monotonic() - started
        tally.phase = ""
        balances = {
            side: ledger.balance(direct[side.database]) for side, ledger in runner.ledgers.items()
        }
        for side, balance in balances.items():
            if recorder is not None:
                recorder.balance(balance.lost, balance.duplicated, side=side.value)
        return Result(
            server=described(server.address),
            seed=options.seed,
            seconds=options.seconds,
            duration=duration,
            tally=tally,
            final_messages=process_pool.final_messages(),
            balances=balances,
            faults=runner.faults,
        )


_PACE: Final = 0.02


class Runner:
    """Runs the timeline once. Not thread-safe."""

    def __init__(
        self,
        process_pool: ProcessPool,
        replica_sets: dict[Side, ReplicaSet],
        tally: Tally,
        recorder: Recorder | None = None,
    ) -> None:
        self.ledgers = {side: Ledger() for side in Side}
        self.faults: dict[Side, Counter[str]] = {side: Counter() for side in Side}
        self._company = process_pool
        self._replica_sets = replica_sets
        self._tally = tally
        self._recorder = recorder
        self._steps = 0

    def run(self, seconds: float, seed: int, display: Display) -> None:
        """Play every phase, for about so many seconds together; raises DemoError."""
        end = time.monotonic()
        for phase in TIMELINE:
            # Counted from the beginning, so that a phase which ran over shortens the later ones.
            end += phase.share * seconds
            self._tally.phase = phase.name
            display.begin(phase)
            for played, scene in enumerate(phase.scenes(seed)):
                if played >= phase.shortest and time.monotonic() >= end:
                    break
                self._play(scene, phase.name)
            display.end(phase)

    def _play(self, scene: Scene, phase: str) -> None:
        step = Step(self._steps, scene.kind, phase)
        self._steps += 1
        # Part of the script: the load's rhythm, or the silence in which connections age.
        time.sleep(max(_PACE, scene.idle))
        injected = {side: scene.faults() for side in self._replica_sets}
        for side, faults in injected.items():
            for fault in faults:
                self._replica_sets[side].inject(fault)
        began = time.time()
        outcomes = self._company.step(step)
        self._record(step, outcomes, began)
        for side, faults in injected.items():
            self._replica_sets[side].clear()
            for fault in faults:
                self.faults[side][type(fault).__name__] += fault.injected
        self._tally.add(phase, outcomes)
        for side, outcome in outcomes.items():
            self.ledgers[side].record(step, acknowledged=outcome.error is None)

    def _record(self, step: Step, outcomes: dict[Side, Outcome], began: float) -> None:
        if self._recorder is None:
            return
        for side, outcome in outcomes.items():
            self._recorder.operation(
                step.kind.value,
                outcome.seconds,
                error=outcome.error,
                server=self._replica_sets[side].members[0].host_and_port,
                repeated=outcome.repeated,
                side=side.value,
                at=began,
            )
