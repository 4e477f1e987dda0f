"""Which commands that ``cursor_command`` runs can only read.

The one command runner that is for reads alone, as every command that it takes returns a cursor.
Source: Retryable Reads, "Supported Read Operations" (the SHOULD) and "Unsupported Read Operations".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALLOWED = frozenset({"aggregate", "find", "listCollections", "listIndexes"})
WRITE_STAGES = frozenset({"$out", "$merge"})


def only_reads(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """From the arguments of ``cursor_command``; what is not surely a read is none."""
    command = args[0] if args else kwargs.get("command")
    if isinstance(command, str):
        command = {command: None}
    if not isinstance(command, Mapping):
        return False
    name = next(iter(command), None)
    if name not in ALLOWED:
        return False
    return name != "aggregate" or not _may_write({**command, **kwargs}.get("pipeline"))


def _may_write(pipeline: object) -> bool:
    if not isinstance(pipeline, (list, tuple)):
        return True
    return any(not isinstance(stage, Mapping) or WRITE_STAGES & set(stage) for stage in pipeline)
