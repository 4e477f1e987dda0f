"""A signal handler's exception at any line of a ``set_active`` block ends the block."""

from __future__ import annotations

import pytest
from support.striking import SoftTimeLimitExceeded, Tracer

from pymongo_resilience import enabled_flag
from pymongo_resilience.testing import set_active


def _block(tracer: Tracer) -> None:
    with tracer, set_active(True):
        pass


@pytest.mark.parametrize("raises", [KeyboardInterrupt, SoftTimeLimitExceeded])
def test_it_is_as_before_after_a_struck_block(raises: type[BaseException]) -> None:
    _block(healthy := Tracer())
    assert len(healthy.lines) > 5
    for at in range(len(healthy.lines)):
        with pytest.raises(raises):
            _block(tracer := Tracer(at, raises))
        assert not enabled_flag.current.on, tracer.struck
