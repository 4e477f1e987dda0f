"""The only package that names private parts of pymongo, one module for each part.

``names`` lists them all by the feature that needs them, for ``self_check``. To support a new
pymongo, begin there. Nothing is decided here.
"""

from __future__ import annotations

from . import (
    clients,
    commands,
    cursors,
    deadline,
    events,
    interruptions,
    names,
    repetition,
    retry_loop,
    selection,
    sessions,
    waits,
)
from .servers import attempts_in_flight, checks, connections, monitors, pools, topologies

__all__ = [
    "attempts_in_flight",
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
    "topologies",
    "waits",
]
