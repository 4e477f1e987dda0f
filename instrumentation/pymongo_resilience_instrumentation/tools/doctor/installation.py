"""This installation: Python, pymongo, and the library's own configuration."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pymongo

from pymongo_resilience.errors import ConfigurationError
from pymongo_resilience.options.config import load
from pymongo_resilience_instrumentation.driver.private_names import parts
from pymongo_resilience_instrumentation.self_check import Feature, missing

from .findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator


def of_library() -> Iterator[Finding]:
    versions = f"pymongo {pymongo.version} on Python {platform.python_version()}"
    lacking = missing(parts())
    if lacking:
        lost = "; ".join(feature.value for feature in lacking)
        text = f"{versions} lacks names that pymongo-resilience uses, disabled: {lost}"
        level = Level.WARNING if Feature.RETRIES in lacking else Level.NOTE
        yield Finding("library", level, text, "a pymongo from 4.19 to 4.20")
    else:
        yield Finding("library", Level.OK, versions)
    try:
        loaded = load()
    except ConfigurationError as error:
        yield Finding("library", Level.WRONG, str(error), "pymongo-resilience config")
        return
    given = ", ".join(sorted(loaded.sources)) or "no option"
    yield Finding("library", Level.OK, f"pymongo-resilience: {given} set by variables or the file")
