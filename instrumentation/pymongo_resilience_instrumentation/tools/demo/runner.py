"""Runs the timeline on all contenders step by step, each behind a proxy of its own."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from .contenders import Side
from .fault_script import TIMELINE, Scene
from .ledger import Ledger
from .workload import Step

if TYPE_CHECKING:
    from pymongo_resilience_instrumentation.tools.report import Recorder
    from pymongo_resilience_instrumentation.tools.testbed import ReplicaSet

    from .live_view import Display
    from .messages import Outcome
    from .process_pool import ProcessPool
    from .tally import Tally

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
