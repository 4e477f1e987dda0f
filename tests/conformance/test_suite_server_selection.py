"""The specifications "Server Selection" and "Max Staleness", by their own tests.

Those of log messages, round-trip times and the choice within the latency window are left out: the
driver writes, measures and makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.conformance.selection_cases import SelectionCase, load, selects_as_told
from support.conformance.specifications import NOT_SET, checkout, parameters

SELECTION = "server-selection"
STALENESS = "max-staleness"
AT_LEAST = 120
"""As many cases as there were when this was written."""


def cases(judge: Callable[[Any], None], suite: str, *within: str) -> list[Any]:
    return parameters(partial(load, suite, judge), suite, *within)


CASES = [
    *cases(selects_as_told, SELECTION, "server_selection"),
    *cases(selects_as_told, STALENESS),
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
