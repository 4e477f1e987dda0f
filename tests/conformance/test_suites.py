"""The specifications "Client Backpressure" and "Retryable Reads", by their own tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from support.conformance.runner import Case, load
from support.conformance.specifications import parameters

CASES = [
    parameter
    for folders in (("client-backpressure",), ("retryable-reads", "unified"))
    for parameter in parameters(partial(load, folders[0]), *folders)
]


@pytest.mark.parametrize("case", CASES)
def test_the_case_holds(case: Case, conforms: Callable[[Case], None]) -> None:
    conforms(case)
