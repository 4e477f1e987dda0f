"""The only package that names private parts of pymongo; the rest asks it by part."""

from __future__ import annotations

from . import (
    checks,
    clients,
    commands,
    connections,
    cursors,
    deadline,
    events,
    interruptions,
    monitors,
    names,
    pools,
    repetition,
    retry_loop,
    selection,
    sessions,
    waits,
)

__all__ = [
    "checks",
    "clients",
    "commands",
    "connections",
    "cursors",
    "deadline",
    "events",
    "interruptions",
    "monitors",
    "names",
    "pools",
    "repetition",
    "retry_loop",
    "selection",
    "sessions",
    "waits",
]
