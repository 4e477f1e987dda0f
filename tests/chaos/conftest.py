"""Fixtures for long runs and for what they may leave, beside those of ``tests/support``."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import pytest
from support.fixtures import no_internal_errors, quick_monitors
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
