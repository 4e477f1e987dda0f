"""Steps that run side by side: each begins when those before it have ended."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


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


_printing = threading.Lock()


def run_steps(steps: list[Step], logs: Path) -> list[Ended]:
    """All of them, each with its output in one piece when it ends."""
    futures: dict[str, Future[Ended]] = {}
    with ThreadPoolExecutor(len(steps)) as threads:
        for step in steps:
            earlier = {name: futures[name] for name in (*step.needs, *step.after)}
            futures[step.name] = threads.submit(_run, step, earlier, logs)
    return [future.result() for future in futures.values()]


def _run(step: Step, earlier: dict[str, Future[Ended]], logs: Path) -> Ended:
    ended = {name: future.result() for name, future in earlier.items()}
    began = time.monotonic()
    lacking = [name for name in step.needs if not ended[name].ok]
    log = logs / f"{slug(step.name)}.log"
    if lacking:
        ok, output = False, f"not run: {', '.join(lacking)} failed\n"
    else:
        with log.open("w") as out:
            done = subprocess.run(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
                check=False,
            )
        ok, output = done.returncode == 0, log.read_text(errors="replace")
    seconds = time.monotonic() - began
    # Without pytest's lines of dots.
    shown = "".join(line for line in output.splitlines(keepends=True) if not line.endswith("%]\n"))
    with _printing:
        print(f"== {step.name}: {'ok' if ok else 'FAILED'}, {seconds:.0f} s\n{shown}", flush=True)
    return Ended(step, ok, seconds)


def environment() -> dict[str, str]:
    """That of this process, but with compiled modules kept: eight processes import the same."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def slug(name: str) -> str:
    return "".join(each if each.isalnum() or each == "." else "-" for each in name)
