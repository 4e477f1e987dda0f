"""Exceptions that strike at one line of the library, as a signal handler's may at any."""

from __future__ import annotations

import asyncio
import contextvars
import dis
import functools
import random
import sys
from collections.abc import Callable, Container
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pymongo_resilience_instrumentation
from opentelemetry import context
from pymongo import _csot
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.retries import deprioritized
from support.clients import Side

import pymongo_resilience
from pymongo_resilience.policies import blocks

OURS = tuple(
    str(Path(package.__file__).parent)
    for package in (pymongo_resilience, pymongo_resilience_instrumentation)
)
Line = tuple[str, int]
OUT_OF_REACH = frozenset({
    "callback of listeners.py",  # the driver keeps what its listeners raise
    "__aexit__ of overrides.py",
    "__exit__ of overrides.py",  # whoever leaves the block runs nothing but this
})  # fmt: skip
"""At their first line nothing of ours has begun yet, and nobody around them is ours."""

NOP = dis.opmap["NOP"]
"""A line that is nothing else, as ``try:``: no signal handler runs there, and CPython 3.11 has no
handler for what is raised there in a loop."""


class SoftTimeLimitExceeded(Exception):  # noqa: N818 - as Celery calls it
    pass


class Tracer:
    """Counts the lines of ours that one thread or task runs, and raises at one of them."""

    def __init__(self, at: int | None = None, raises: type[BaseException] | None = None) -> None:
        self.lines: list[Line] = []
        self.struck: Line | None = None
        """The function and its file, and the line."""
        self.out_of_reach = False
        self._begins: FrameType | None = None
        self._at = at
        self._raises = raises
        self._task = _task()

    def __enter__(self) -> Tracer:
        self._task = _task()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS) or _place(frame) in FINALIZERS:
            return None
        self._begins = frame
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and _opcode(frame) == NOP:
            return self._line
        begins, self._begins = self._begins is frame, None
        if event == "line" and (self._task is None or _task() is self._task):
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) - 1 == self._at and self._raises is not None:
                self.struck = _place(frame), frame.f_lineno
                self.out_of_reach = begins and self.struck[0] in OUT_OF_REACH
                raise self._raises
        return self._line


FINALIZERS = frozenset({"<lambda> of transaction_spans.py"})
"""The interpreter keeps what is raised there."""


def _opcode(frame: FrameType) -> int:
    return _bytes(frame.f_code)[frame.f_lasti]


@functools.cache
def _bytes(code: CodeType) -> bytes:
    return code.co_code


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} of {Path(frame.f_code.co_filename).name}"


def _task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def in_force() -> dict[str, Any]:
    """What holds for the caller's thread or task."""
    return {
        "call": calls.found(),
        "timeout": _csot.TIMEOUT.get(None),
        "deadline": _csot.DEADLINE.get(),
        "round-trip time": _csot.RTT.get(),
        "policy": blocks.current(),
        "span": context.get_current(),
        "avoided": deprioritized.avoided(),
    }


def run(
    side: Side,
    act: Callable[[], Any],
    at: int | None = None,
    raises: type[BaseException] | None = None,
) -> tuple[Tracer, BaseException | None, dict[str, tuple[Any, Any]]]:
    """One call, struck at its ``at``-th line of ours; what it raised, and what it left in force."""
    tracer = Tracer(at, raises)

    def in_thread() -> Any:
        before, raised = in_force(), None
        try:
            with tracer:
                act()
        except BaseException as error:  # noqa: BLE001 - answered with
            raised = error
        return raised, _changed(before)

    async def in_task() -> Any:
        before, raised = in_force(), None
        try:
            with tracer:
                await act()
        except BaseException as error:  # noqa: BLE001 - answered with
            raised = error
        return raised, _changed(before)

    if side.runner is None:
        raised, changed = contextvars.copy_context().run(in_thread)
    else:
        raised, changed = side.do(in_task)
    return tracer, raised, changed


def _changed(before: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (before[name], now) for name, now in in_force().items() if now is not before[name]
    }


def moments(lines: list[Line], known: Container[Line] = ()) -> list[int]:
    """For each line that is not ``known`` one of the times when it runs, in order."""
    times: dict[Line, list[int]] = {}
    for number, line in enumerate(lines):
        if line not in known:
            times.setdefault(line, []).append(number)
    rng = random.Random(len(lines))  # noqa: S311 - the same for the same lines
    return sorted(rng.choice(each) for each in times.values())
