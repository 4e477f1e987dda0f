"""What is called outside of the library: the call in progress is the current one again after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo_resilience_instrumentation import calls
from pymongo_resilience_instrumentation.calls import Call
from support.striking import SoftTimeLimitExceeded, Tracer

pytestmark = pytest.mark.oldest
TELLS: dict[str, Callable[[Call], Any]] = {
    "publish": lambda call: calls.publish(call, int),
    "reported": lambda call: calls.reported(int),
}


@pytest.mark.parametrize("raises", [KeyboardInterrupt, SoftTimeLimitExceeded])
@pytest.mark.parametrize("name", TELLS)
def test_the_call_goes_on_at_whatever_line_it_is_struck(
    name: str, raises: type[BaseException]
) -> None:
    call = Call(None, "find", ("db", "coll"))
    calls.enter(call)
    try:
        with Tracer() as healthy:
            TELLS[name](call)
        assert len(healthy.lines) > 3
        for at in range(len(healthy.lines)):
            with pytest.raises(raises), Tracer(at, raises) as tracer:
                TELLS[name](call)
            assert (calls.current(), call.reporting) == (call, False), tracer.struck
    finally:
        calls.leave(call)
