"""Counts the bytecode instructions of the library that one thread executes."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from types import FrameType
from typing import Any

from support.striking import OURS


class Instructions:
    """Without those of finalizers, which the collector may run anywhere."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def __enter__(self) -> Instructions:
        gc.collect()
        gc.disable()
        # Python 3.12 checks when tracing begins whether a frame wants opcode events.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        return self._instruction

    def _instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._counted[frame.f_code.co_name] += event == "opcode"
        return self._instruction
