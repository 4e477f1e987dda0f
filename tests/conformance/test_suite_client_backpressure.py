"""The specification "Client Backpressure", by its own tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from support.conformance.runner import Case, load
from support.conformance.specifications import parameters

SUITE = "client-backpressure"


@pytest.mark.parametrize("case", parameters(partial(load, SUITE), SUITE))
def test_the_case_holds(case: Case, conforms: Callable[[Case], None]) -> None:
    conforms(case)
