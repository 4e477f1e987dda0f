"""CPython keeps the attributes of an instance where it finds them fast, until somebody reads its
``__dict__``: of what an operation passes through, we do not."""

from __future__ import annotations

import pytest
from support.child_programs import run

from pymongo_resilience.testbed import CutAfter, ReplicaSet

pytestmark = pytest.mark.oldest


@pytest.mark.parametrize("half", ["sync", "async"])
@pytest.mark.parametrize("shown", ["true", "false"])
def test_what_an_operation_passes_through_keeps_its_attributes_inline(
    shown: str, half: str, proxy: ReplicaSet, database: str
) -> None:
    cut = proxy.inject(CutAfter("find"))
    telemetry = {"PYMONGO_RESILIENCE_TRACES": shown, "PYMONGO_RESILIENCE_METRICS": shown}
    answer, _ = run("inline_attributes", proxy.uri, database, half, **telemetry)
    assert cut.done()
    assert answer == {"in a dictionary": []}
