"""The specifications "Server Selection" and "Max Staleness", by their own tests.

Those of log messages, round-trip times and the choice within the latency window are left out: the
driver writes, measures and makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from support.conformance.selection_cases import SelectionCase, load
from support.conformance.specifications import NOT_SET, checkout, parameters

SELECTION = "server-selection"
STALENESS = "max-staleness"
AT_LEAST = 120
"""As many cases as there were when this was written."""


CASES = [
    *parameters(partial(load, SELECTION), SELECTION, "server_selection"),
    *parameters(partial(load, STALENESS), STALENESS),
]


@pytest.mark.parametrize("case", CASES)
def test_the_case_holds(
    case: SelectionCase, engine_conforms: Callable[[SelectionCase], None]
) -> None:
    engine_conforms(case)


@pytest.mark.skipif(checkout() is None, reason=NOT_SET)
def test_no_case_was_lost_on_the_way() -> None:
    assert len({str(*each.values) for each in CASES}) == len(CASES)
    assert len(CASES) >= AT_LEAST
