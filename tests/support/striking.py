"""What strikes in the library's own lines, as a signal handler's exception may."""

from __future__ import annotations

from pathlib import Path

import pymongo_resilience_instrumentation

import pymongo_resilience

OURS = tuple(
    str(Path(package.__file__).parent)
    for package in (pymongo_resilience, pymongo_resilience_instrumentation)
)


class SoftTimeLimitExceeded(Exception):  # noqa: N818 - as Celery calls it
    pass
