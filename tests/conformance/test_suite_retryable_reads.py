"""The specification "Retryable Reads", by its own tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from support.conformance.runner import Case, load
from support.conformance.specifications import parameters

SUITE = "retryable-reads"


@pytest.mark.parametrize("case", parameters(partial(load, SUITE), SUITE, "unified"))
def test_the_case_holds(case: Case, conforms: Callable[[Case], None]) -> None:
    conforms(case)
