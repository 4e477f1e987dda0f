"""This installation: Python, pymongo, and the library's own configuration."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pymongo

from pymongo_resilience.config import load
from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience_instrumentation.driver.private_names import parts
from pymongo_resilience_instrumentation.self_check import State, missing

from .findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator


def of_library() -> Iterator[Finding]:
    versions = f"pymongo {pymongo.version} on Python {platform.python_version()}"
    lacking = missing(parts())
    if lacking:
        state = State.OFF if State.OFF in lacking else State.TELEMETRY
        names = ", ".join(name for found in lacking.values() for name in found)
        text = f"{versions} lacks {names}: {state.value}"
        yield Finding("library", Level.WARNING, text, "install a pymongo from 4.19 to 4.20")
    else:
        yield Finding("library", Level.OK, versions)
    try:
        loaded = load()
    except ConfigurationError as error:
        yield Finding("library", Level.WRONG, str(error), "run pymongo-resilience config")
        return
    given = ", ".join(sorted(loaded.sources)) or "no option"
    yield Finding("library", Level.OK, f"pymongo-resilience: {given} set by variables or the file")
