"""When a client that has lost its servers still counts as ready."""

from __future__ import annotations

from hypothesis import given, strategies as st

from pymongo_resilience.ready_states import Look, ReadyState

WELL = Look(True, True, "")
ELECTION = Look(False, True, "no writes: the replica set has no primary at the moment")
GONE = Look(False, False, "no writes and reads: nothing listens on that port")
HOPELESS = Look(False, False, "the certificate has expired", is_hopeless=True)
GRACE = 15.0


def after(*looks: tuple[float, Look]) -> ReadyState:
    (at, first), *rest = looks
    state = ReadyState.first(first, at)
    for now, look in rest:
        state = state.after(look, now)
    return state


def test_a_client_that_was_never_ready_has_no_grace() -> None:
    assert after((0, GONE), (1, GONE)).ready(1, GRACE) == (False, False)
    assert after((0, ELECTION)).ready(0, GRACE) == (False, True)


def test_a_client_that_was_ready_stays_so_for_the_grace_period() -> None:
    state = after((0, WELL), (100, ELECTION), (109, ELECTION))
    assert state.ready(109, GRACE) == (True, True)
    assert state.ready(115, GRACE) == (False, True)
    assert state.ready(109, 0) == (False, True)
    assert state.since == 100
    back = state.after(WELL, 110)
    assert back.ready(110, 0) == (True, True)
    assert back.since == 110
    assert back.after(GONE, 120).ready(134, GRACE) == (True, True), "each loss has its own"


def test_writes_and_reads_are_lost_one_by_one() -> None:
    state = after((0, WELL), (100, ELECTION), (110, GONE))
    assert state.ready(116, GRACE) == (False, True)
    assert state.since == 100


def test_what_is_hopeless_has_no_grace() -> None:
    assert after((0, WELL), (1, HOPELESS)).ready(1, GRACE) == (False, False)


def test_the_grace_period_counts_from_when_it_began() -> None:
    silent = Look(False, False, "has not answered a check for 12 s", began=88.0)
    state = after((0, WELL), (100, silent))
    assert state.since == 88
    assert state.ready(102, GRACE) == (True, True)
    assert state.ready(103, GRACE) == (False, False)
    assert after((90, WELL), (100, silent)).since == 90, "not before it was well"


looks = st.sampled_from([WELL, ELECTION, GONE, HOPELESS])


@given(st.lists(st.tuples(st.floats(0.1, 20), looks), min_size=1), st.floats(0, 30))
def test_ready_means_able_now_or_less_than_the_grace_ago(
    steps: list[tuple[float, Look]], grace: float
) -> None:
    now, state, last = 0.0, None, {"write": None, "read": None}
    for seconds, look in steps:
        now += seconds
        state = ReadyState.first(look, now) if state is None else state.after(look, now)
        for kind, able, ready in zip(
            last, (look.can_write, look.can_read), state.ready(now, grace), strict=True
        ):
            if able:
                assert ready
                last[kind] = now
            elif ready:
                assert not look.is_hopeless
                assert last[kind] is not None
            elif not look.is_hopeless and last[kind] == now - seconds:
                assert grace == 0, "it was lost just now"
        assert state.since <= now
