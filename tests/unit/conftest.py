"""The clock of these tests. Hypothesis: no wall-clock limit per example, no database on disk."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import engine
from support.engine.fake_clock import FakeClock
from support.examples import scaled


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("unit", deadline=None, database=None, max_examples=scaled(200))
    settings.load_profile("unit")
    # Or a property that fails may be shrunk until its process ends as one that hangs.
    engine.MAX_SHRINKING_SECONDS = 60


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
