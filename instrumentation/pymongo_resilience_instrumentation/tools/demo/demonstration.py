"""Puts the demonstration together: server, replica_sets, sides, picture, ledger, report."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pymongo import MongoClient
from rich.console import Console

from pymongo_resilience_instrumentation.tools.report import Recorder
from pymongo_resilience_instrumentation.tools.testbed import EmbeddedServer, ReplicaSet
from pymongo_resilience_instrumentation.tools.testbed.server import described

from .closing_report import report, save_svg
from .contenders import Side
from .live_view import shown
from .process_pool import ProcessPool
from .result import Result
from .runner import Runner
from .side_process import Settings
from .tally import Tally
from .workload import prepare

if TYPE_CHECKING:
    from pathlib import Path

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
