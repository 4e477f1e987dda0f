"""What users' tests get from us: recorded decisions and the switch."""

from __future__ import annotations

from typing import Any

import pytest

from pymongo_resilience import enabled_flag
from pymongo_resilience.testing import RecordingListener, is_active, set_active


def test_set_active_is_undone_at_the_end_of_its_block() -> None:
    before = is_active()
    with set_active(True):
        assert is_active()
        with set_active(False):
            assert not is_active()
        assert is_active()
    assert is_active() is before
    with pytest.raises(LookupError), set_active(not before):
        raise LookupError
    assert is_active() is before


@pytest.mark.parametrize("active", [True, False])
def test_a_switch_that_is_turned_off_for_good_stays_off_after_the_block(active: bool) -> None:
    ours = enabled_flag.EnabledFlag(on=True)
    with ours.set_to(active):
        ours.turn(on=False)
        assert ours.on is False
    assert ours.on is False


def test_a_recording_listener_forgets() -> None:
    listener = RecordingListener()
    event: Any = object()
    listener.on_event(event)
    kept = listener.events
    listener.clear()
    assert listener.events == []
    listener.on_event(event)
    assert listener.events is kept == [event]
