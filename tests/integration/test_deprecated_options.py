"""Timeouts of an older kind under a deadline: one warning for each client.

That they do not act is seen in test_time_limits.py, on the wire.
"""

from __future__ import annotations

import pytest
from support.clients import Side
from support.telemetry import Instrument

pytestmark = pytest.mark.oldest

OLDER = {"socketTimeoutMS": 9000, "waitQueueTimeoutMS": 9000, "wTimeoutMS": 9000}
NAMED = ": socketTimeoutMS, waitQueueTimeoutMS, wtimeout;"
TIMEOUT = 20_000


@pytest.mark.parametrize("before", [False, True], ids=["", "before instrument()"])
@pytest.mark.parametrize(
    ("default", "own", "warnings"),
    [
        (TIMEOUT, OLDER, 1),
        (None, OLDER | {"timeoutMS": TIMEOUT}, 1),
        (TIMEOUT, OLDER | {"timeoutMS": 0}, 1),
        (None, OLDER, 0),
        (TIMEOUT, {}, 0),
    ],
)
def test_a_client_with_a_timeout_names_its_older_options(
    default: int | None, own: dict[str, int], warnings: int, before: bool, side: Side,
    caplog: pytest.LogCaptureFixture, instrument: Instrument,
) -> None:  # fmt: skip
    if not before:
        instrument(timeout_ms=default)
    side.client("mongodb://127.0.0.1:1/", connect=False, **own)
    if before:
        instrument(timeout_ms=default)
    found = [each for each in caplog.records if "ignored where" in each.message]
    assert [(each.name, each.levelname) for each in found] == [
        ("pymongo_resilience", "WARNING")
    ] * warnings
    assert all(NAMED in each.message for each in found)
