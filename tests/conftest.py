"""What all tests share: fixtures, the parts that a run may choose, what is counted at its end."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from support.fixtures import (
    cluster,
    collector,
    control,
    database,
    defaults,
    empty_shop,
    instrument,
    proxy,
    replica_set,
    sent,
    server,
    side,
)
from support.gathered import Gathering, gather
from support.parts import Parts
from support.servers import Servers

LONGEST = 22
"""Characters of a parameter in the name of a test."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    for hooks in (Gathering(), Parts(), Servers()):
        pluginmanager.register(hooks)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """The name of a test fits a line."""
    text = " ".join(str(val).split()) if isinstance(val, str | int) else ""
    return f"{text[:LONGEST]}..." if len(text) > LONGEST else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What holds is held as the README sets the library up, and bare."""
    if "defaults" in metafunc.fixturenames and metafunc.definition.get_closest_marker("each_setup"):
        metafunc.parametrize("defaults", [{}, {"timeout_ms": 20_000}], ids=["bare", "timed"])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests are no garbage: walking them took a fifth of the time of a run."""
    gc.collect()
    gc.freeze()
