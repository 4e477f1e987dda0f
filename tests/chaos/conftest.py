"""The fixtures and helpers of the integration tests, for long runs and for what they may leave.

Imported, not moved one level up: the unit tests stay without a driver, and ``from conftest import``
finds the same names whichever of the two folders pytest loaded last.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import pytest
from integration.conftest import *  # noqa: F403 - fixtures are found by name in this module
from support.gathered import gather


@pytest.fixture(scope="module")
def quick_census() -> None:
    """What there is before a module's tests is none of their residue: not walked each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def figure(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """``figure(text)``: a measured figure, for the end of the run."""
    return functools.partial(gather, pytestconfig, "figures")
