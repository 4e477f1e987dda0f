"""Steps that run side by side: each begins when those before it have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

GRACE = 5.0
"""Seconds that a stopped step has for its last output."""


@dataclass(frozen=True)
class Step:
    """One command. A failed check does not keep the later steps from running; what ``needs`` names
    must have succeeded."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    step: Step
    ok: bool
    seconds: float


def run_steps(steps: list[Step], logs: Path, limit: float = inf) -> list[Ended]:
    """All of them, each with its output in one piece when it ends. What still runs after ``limit``
    seconds is stopped, and has failed."""
    return _Run(logs, limit).of(steps)


class _Run:
    def __init__(self, logs: Path, limit: float) -> None:
        self._logs = logs
        self._limit = limit
        self._deadline = time.monotonic() + limit
        self._running: set[subprocess.Popen[bytes]] = set()
        self._printing = threading.Lock()

    def of(self, steps: list[Step]) -> list[Ended]:
        futures: dict[str, Future[Ended]] = {}
        with ThreadPoolExecutor(len(steps)) as threads:
            try:
                for step in steps:
                    earlier = {name: futures[name] for name in (*step.needs, *step.after)}
                    futures[step.name] = threads.submit(self._run, step, earlier)
                return [future.result() for future in futures.values()]
            except BaseException:  # of a user who has seen enough
                self._deadline = 0.0
                for process in self._running.copy():
                    stop(process, signal.SIGINT)
                raise

    def _run(self, step: Step, earlier: dict[str, Future[Ended]]) -> Ended:
        ended = {name: future.result() for name, future in earlier.items()}
        began = time.monotonic()
        lacking = [name for name in step.needs if not ended[name].ok]
        if lacking:
            ok, output = False, f"not run: {', '.join(lacking)} failed\n"
        elif began >= self._deadline:
            ok, output = False, "not run: no time was left\n"
        else:
            ok, output = self._execute(step)
        seconds = time.monotonic() - began
        # Without pytest's lines of dots.
        shown = "".join(line for line in output.splitlines(True) if not line.endswith("%]\n"))
        with self._printing:
            print(
                f"== {step.name}: {'ok' if ok else 'FAILED'}, {seconds:.0f} s\n{shown}", flush=True
            )
        return Ended(step, ok, seconds)

    def _execute(self, step: Step) -> tuple[bool, str]:
        log = self._logs / f"{slug(step.name)}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
                process_group=0,  # to be stopped with all that it started
            )
            self._running.add(process)
            try:
                status = process.wait(max(self._deadline - time.monotonic(), 0))
                text = ""
            except subprocess.TimeoutExpired:
                # On this signal, pytest's processes write the stacks of their threads.
                stop(process, signal.SIGABRT)
                status = 1
                text = f"STOPPED: all steps together may take {self._limit:.0f} s\n"
            finally:
                self._running.discard(process)
        return status == 0, log.read_text(errors="replace") + text


def stop(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """The whole process group: gently, and what is left of it for good."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, first)
        _wait_until(lambda: process.poll() is not None and not _exists(process.pid))
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + GRACE
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


def environment() -> dict[str, str]:
    """That of this process, but with compiled modules kept: eight processes import the same."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def slug(name: str) -> str:
    return "".join(each if each.isalnum() or each == "." else "-" for each in name)
