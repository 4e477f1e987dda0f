"""Resumable finds: after a lost cursor, the find is sent again from the last document.

``rules`` decides which finds can be resumed and after which failures. ``scan`` tracks the position
of a cursor and sends the find. ``aggregates`` does the same for aggregates with only ``$match``.
"""

from __future__ import annotations

from typing import Any

from pymongo_resilience_instrumentation.runtime import Runtime

from . import aggregates, scan


def plug_in(runtime: Runtime, apply_patches: Any) -> None:
    scan.plug_in(runtime, apply_patches)
    aggregates.plug_in(runtime)
