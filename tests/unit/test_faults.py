"""What becomes of an internal error: it is logged where it was, and goes no further."""

from __future__ import annotations

import asyncio

import pytest

from pymongo_resilience import internal_errors


def test_a_shielded_fault_is_logged_where_it_was_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with internal_errors.contain_internal_errors("here"):
        {}["a"]
    (record,) = caplog.records
    assert record.getMessage() == "internal error in pymongo-resilience here"
    assert record.funcName == "test_a_shielded_fault_is_logged_where_it_was_and_goes_no_further"
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_no_shield_holds_what_is_no_fault(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(error), internal_errors.contain_internal_errors("here"):
        raise error
    assert not caplog.records
