"""The timeouts of cursors and change streams: which one a cursor keeps, and what a batch gets."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo import CursorType
from pymongo_resilience_instrumentation.driver.csot import ActiveTimeout, Timeout
from pymongo_resilience_instrumentation.limits import NEVER, Limits
from pymongo_resilience_instrumentation.timeouts import precedence
from pymongo_resilience_instrumentation.timeouts.precedence import (
    CursorTimeout,
    TransactionDeadline,
    keep,
    kept_by,
    limit_batch,
    limit_cursor,
    limit_resume,
    write_stage,
)
from support.timeout_rules import (
    NOW,
    Around,
    activated,
    call_of,
    clock,
    limits_of,
    nested,
    request,
    rules,
)

from pymongo_resilience import ConfigurationError, Policy, override
from pymongo_resilience.option_types import CURSOR_LIFETIME, ITERATION
from pymongo_resilience.timeout_source import TimeoutSource

__all__ = ["clock"]

pytestmark = pytest.mark.oldest
CONFIGURED, BOUND = TimeoutSource.CONFIGURATION, TimeoutSource.BINDING
PYMONGO = TimeoutSource.PYMONGO_TIMEOUT


def cursor_of(flags: int = CursorType.NON_TAILABLE, max_await_ms: int | None = None) -> Any:
    return SimpleNamespace(_query_flags=flags, _max_await_time_ms=max_await_ms)


def kept_for(
    configured: dict[str, Any],
    cursor: Any = None,
    writes: str | None = None,
    **made: Any,
) -> CursorTimeout | None:
    """The timeout of the cursor that a find creates, called where the caller is."""
    of_all, call, limits = (
        rules(**configured),
        call_of(**made),
        limits_of(rules(**configured), **made),
    )
    limit_cursor(of_all, call, limits, cursor, writes)
    return limits.cursor


def test_a_configured_timeout_is_for_each_batch() -> None:
    kept = kept_for({"default": 9_000})
    assert kept is not None
    assert (kept.seconds, kept.mode, kept.source) == (9.0, ITERATION, CONFIGURED)
    assert (kept.began, kept.to_close, kept.wait, kept.in_use) == (NOW, 9.0, 0.0, True)
    assert kept.omits_max_time
    assert kept.ends == NEVER


def test_a_timeout_of_the_application_is_for_the_cursors_whole_life() -> None:
    kept = kept_for({"default": 9_000}, bound=2_000)
    assert kept is not None
    assert (kept.seconds, kept.mode, kept.source) == (2.0, CURSOR_LIFETIME, BOUND)
    assert not kept.omits_max_time
    assert kept.ends == NOW + 2


def test_a_disabled_timeout_never_ends_a_cursor() -> None:
    kept = kept_for({"default": 9_000}, bound=0)
    assert kept is not None
    assert (kept.seconds, kept.mode, kept.ends) == (0.0, CURSOR_LIFETIME, NEVER)


@pytest.mark.parametrize(
    ("configured", "made", "mode"),
    [
        ({"default": 1, "mode": CURSOR_LIFETIME}, {}, CURSOR_LIFETIME),
        ({"default": 1, "mode": ITERATION}, {"bound": 2}, ITERATION),
        (
            {"default": 1, "mode": CURSOR_LIFETIME},
            {"bound": Policy(timeout_mode=ITERATION)},
            ITERATION,
        ),
        (
            {"default": 1, "rule": Policy(timeout_mode=CURSOR_LIFETIME)},
            {},
            CURSOR_LIFETIME,
        ),
    ],
)
def test_the_mode_of_a_policy_goes_before_that_of_the_configuration(
    configured: dict[str, Any], made: dict[str, Any], mode: str
) -> None:
    kept = kept_for(configured, **made)
    assert kept is not None
    assert kept.mode == mode


def test_without_a_timeout_a_cursor_keeps_none() -> None:
    assert kept_for({}) is None
    assert kept_for({"mode": ITERATION}) is None
    with request(1.0):
        assert kept_for({}) is None, "a cursor may outlive the request"


def test_in_a_transaction_a_cursor_keeps_none() -> None:
    limits = limits_of(rules(default=9_000))
    limits.transaction = TransactionDeadline(Timeout(9.0, NOW + 9), None, NOW)
    limit_cursor(rules(default=9_000), call_of(), limits)
    assert limits.cursor is None


def test_a_tailable_cursor_has_a_timeout_for_each_batch() -> None:
    kept = kept_for({"default": 9_000, "mode": CURSOR_LIFETIME}, cursor_of(CursorType.TAILABLE))
    assert kept is not None
    assert (kept.mode, kept.wait) == (ITERATION, 0.0)


@pytest.mark.parametrize(("max_await_ms", "wait"), [(None, 1.0), (2_500, 2.5)])
def test_a_configured_timeout_leaves_time_to_wait_for_new_documents(
    max_await_ms: int | None, wait: float
) -> None:
    awaiting = cursor_of(CursorType.TAILABLE_AWAIT, max_await_ms)
    kept = kept_for({"default": 1_000}, awaiting)
    assert kept is not None
    assert (kept.mode, kept.wait) == (ITERATION, wait)
    kept = kept_for({"default": 1_000}, awaiting, bound=9_000)
    assert kept is not None
    assert (kept.mode, kept.wait) == (ITERATION, 0.0)


def test_an_aggregate_that_writes_is_one_command() -> None:
    kept = kept_for({"default": 9_000}, writes="$out")
    assert kept is not None
    assert (kept.seconds, kept.mode) == (9.0, CURSOR_LIFETIME)


@pytest.mark.parametrize(
    ("around", "seconds"),
    [
        (lambda: pymongo.timeout(5), None),
        (lambda: nested(pymongo.timeout(5), override(timeout_ms=8_000)), 8.0),
        (lambda: nested(pymongo.timeout(5), override(timeout_ms=0)), None),
        (lambda: override(timeout_ms=4_000), 4.0),
    ],
)
def test_a_pymongo_timeout_around_a_cursor_is_not_the_cursors(
    around: Around, seconds: float | None
) -> None:
    with around():
        kept = kept_for({"default": 9_000})
    assert kept is not None
    assert (kept.seconds, kept.mode) == (seconds, CURSOR_LIFETIME)


def test_a_cursor_inside_of_another_operation_has_that_operations_timeout() -> None:
    with ActiveTimeout(5.0, source=CONFIGURED):
        kept = kept_for({"default": 9_000})
    assert kept is not None
    assert (kept.seconds, kept.mode, kept.to_close) == (None, CURSOR_LIFETIME, 5.0)


@pytest.mark.parametrize(
    ("configured", "cursor", "writes", "bound"),
    [
        pytest.param({}, None, None, Policy(timeout_mode=ITERATION), id="no timeout"),
        pytest.param(
            {"default": 1_000},
            cursor_of(CursorType.TAILABLE),
            None,
            Policy(timeout_mode=CURSOR_LIFETIME),
            id="a tailable cursor has no whole life",
        ),
        pytest.param(
            {"default": 1_000}, None, "$out", Policy(timeout_mode=ITERATION), id="one command"
        ),
        pytest.param(
            {},
            cursor_of(CursorType.TAILABLE_AWAIT, 2_000),
            None,
            Policy(timeout_ms=2_000),
            id="it would wait until the timeout",
        ),
        pytest.param(
            {},
            cursor_of(CursorType.TAILABLE_AWAIT, 2_001),
            None,
            Policy(timeout_ms=2_000),
            id="it would wait longer",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(
    configured: dict[str, Any], cursor: Any, writes: str | None, bound: Policy
) -> None:
    with pytest.raises(ConfigurationError):
        kept_for(configured, cursor, writes, bound=bound)


@pytest.mark.parametrize(
    ("configured", "cursor", "writes", "bound"),
    [
        pytest.param({"default": 1, "mode": CURSOR_LIFETIME}, cursor_of(CursorType.TAILABLE), None,
                     Policy(), id="tailable, the mode is a default"),
        pytest.param({"default": 1, "mode": ITERATION}, None, "$out", Policy(),
                     id="writes, the mode is a default"),
        pytest.param({"default": 1}, cursor_of(CursorType.TAILABLE), None,
                     Policy(timeout_mode=ITERATION), id="tailable by batch"),
        pytest.param({"default": 1}, None, "$out", Policy(timeout_mode=CURSOR_LIFETIME),
                     id="writes with a whole life"),
        pytest.param({"default": 1}, cursor_of(CursorType.TAILABLE_AWAIT, 2_000), None, Policy(),
                     id="a configured timeout does not limit the wait"),
        pytest.param({}, cursor_of(CursorType.TAILABLE_AWAIT, 1_999), None,
                     Policy(timeout_ms=2_000), id="it waits for less than the timeout"),
        pytest.param({}, cursor_of(CursorType.TAILABLE_AWAIT, 2_000), None, Policy(timeout_ms=0),
                     id="no timeout to wait for"),
        pytest.param({}, cursor_of(CursorType.TAILABLE_AWAIT), None, Policy(timeout_ms=500),
                     id="the wait is the server's default"),
    ],
)  # fmt: skip
def test_what_fits_together_is_accepted(
    configured: dict[str, Any], cursor: Any, writes: str | None, bound: Policy
) -> None:
    assert kept_for(configured, cursor, writes, bound=bound) is not None


def test_a_change_stream_waits_for_less_than_its_timeout() -> None:
    limits = limits_of(rules(), bound=2_000)
    precedence.check_max_await(limits, 1_999)
    precedence.check_max_await(limits, "a value that pymongo refuses")
    with pytest.raises(ConfigurationError):
        precedence.check_max_await(limits, 2_000)
    with request(1.0):
        precedence.check_max_await(limits_of(rules(), bound=2_000), 1_999)


def test_a_cursor_keeps_its_timeout() -> None:
    cursor = cursor_of()
    assert kept_by(cursor) is None
    timeout = CursorTimeout(5.0, ITERATION, NOW, 5.0)
    keep(cursor, timeout)
    assert kept_by(cursor) is timeout
    keep(cursor, None)
    assert kept_by(cursor) is None


Batch = tuple[float | None, float] | None
BATCHES: dict[str, tuple[CursorTimeout, Around, Batch]] = {
    # what the cursor keeps; around the batch; seconds and end, or None for what is active
    "each batch": (
        CursorTimeout(5.0, ITERATION, NOW - 9, 5.0), contextlib.nullcontext, (5.0, NOW + 5),
    ),
    "each batch, with a wait for new documents": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0, wait=1.0), contextlib.nullcontext, (6.0, NOW + 6),
    ),
    "a whole life": (
        CursorTimeout(5.0, CURSOR_LIFETIME, NOW - 2, 5.0), contextlib.nullcontext, (5.0, NOW + 3),
    ),
    "none of its own": (
        CursorTimeout(None, CURSOR_LIFETIME, NOW, 5.0), lambda: override(timeout_ms=1), None,
    ),
    "0": (CursorTimeout(0.0, ITERATION, NOW, 0.0, wait=1.0), contextlib.nullcontext,
          (0.0, math.inf)),
    "0 in override": (
        CursorTimeout(0.0, ITERATION, NOW, 0.0), lambda: override(timeout_ms=4_000),
        (4.0, NOW + 4),
    ),
    "0 in pymongo.timeout": (
        CursorTimeout(0.0, ITERATION, NOW, 0.0), lambda: pymongo.timeout(3), None,
    ),
    "0 in pymongo.timeout(0)": (
        CursorTimeout(0.0, ITERATION, NOW, 0.0), lambda: pymongo.timeout(0), None,
    ),
    "0 in pymongo.timeout(None) inside of another one": (
        CursorTimeout(0.0, ITERATION, NOW, 0.0),
        lambda: nested(pymongo.timeout(3), pymongo.timeout(None)), None,
    ),
    "in a shorter override": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0), lambda: override(timeout_ms=4_000),
        (4.0, NOW + 4),
    ),
    "in a longer override": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0), lambda: override(timeout_ms=8_000),
        (5.0, NOW + 5),
    ),
    "in an override of 0": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0), lambda: override(timeout_ms=0), (5.0, NOW + 5),
    ),
    "in a shorter pymongo.timeout": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0), lambda: pymongo.timeout(3), None,
    ),
    "in a pymongo.timeout as long": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0), lambda: pymongo.timeout(5), None,
    ),
    "in a longer pymongo.timeout": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0), lambda: pymongo.timeout(8), (5.0, NOW + 5),
    ),
    "in a pymongo.timeout(0)": (
        CursorTimeout(5.0, ITERATION, NOW, 5.0), lambda: pymongo.timeout(0), (5.0, NOW + 5),
    ),
    "a whole life that ends in a shorter pymongo.timeout": (
        CursorTimeout(5.0, CURSOR_LIFETIME, NOW - 4, 5.0), lambda: pymongo.timeout(3),
        (3.0, NOW + 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", BATCHES)
def test_a_batch_gets_the_cursors_timeout_unless_a_block_is_shorter(row: str) -> None:
    kept, around, expected = BATCHES[row]
    with around():
        assert kept.for_a_batch() == expected


def test_a_batch_is_limited_by_what_its_cursor_keeps() -> None:
    limits = limits_of(rules(default=1_000))
    limit_batch(limits, None)
    assert limits.cursor is None
    assert activated(limits) == (1.0, NOW + 1, CONFIGURED)

    kept = CursorTimeout(5.0, CURSOR_LIFETIME, NOW - 2, 5.0, source=BOUND, in_use=False)
    limit_batch(limits, kept)
    assert limits.cursor is kept
    assert kept.in_use
    assert activated(limits) == (5.0, NOW + 3, BOUND)


def test_a_batch_of_a_cursor_without_a_timeout_of_its_own_has_the_active_one() -> None:
    kept = CursorTimeout(None, CURSOR_LIFETIME, NOW, 5.0, source=PYMONGO)
    with pymongo.timeout(3):
        limits = limits_of(rules(default=1_000))
        limit_batch(limits, kept)
        assert limits.cursor is kept
        assert activated(limits) == (3.0, NOW + 3, PYMONGO)


def test_a_block_around_a_batch_is_named_as_its_source() -> None:
    """A configured timeout of the cursor does not hide that the application limited the batch."""
    kept = CursorTimeout(5.0, ITERATION, NOW, 5.0, source=CONFIGURED)
    with override(timeout_ms=4_000):
        limits = limits_of(rules(default=5_000))
        limit_batch(limits, kept)
        assert activated(limits) == (4.0, NOW + 4, TimeoutSource.BLOCK)


@pytest.mark.parametrize(
    ("made", "least", "active"),
    [
        ({"default": 1_000}, 30.0, (30.0, NOW + 30, CONFIGURED)),
        ({"default": 1_000}, 0.5, (1.0, NOW + 1, CONFIGURED)),
        ({"default": 0}, 30.0, (0.0, math.inf, CONFIGURED)),
    ],
)
def test_a_configured_timeout_ends_no_stream_that_pymongo_would_resume(
    made: dict[str, Any], least: float, active: tuple[float, float, TimeoutSource]
) -> None:
    limits, kept = limits_of(rules(**made)), CursorTimeout(1.0, ITERATION, NOW, 1.0)
    limit_resume(limits, kept, least)
    assert limits.stream is kept
    assert activated(limits) == active


def test_a_timeout_of_the_application_ends_the_resumption_of_a_stream() -> None:
    limits = limits_of(rules(default=9_000), bound=1_000)
    limit_resume(limits, None, 30.0)
    assert limits.stream is None
    assert activated(limits) == (1.0, NOW + 1, BOUND)
    nothing = limits_of(rules())
    limit_resume(nothing, None, 30.0)
    assert activated(nothing)[0] is None


def limits_with(timeout: float, **attributes: Any) -> Limits:
    limits = Limits()
    limits.timeout = timeout
    for name, value in attributes.items():
        setattr(limits, name, value)
    return limits


LIFE = CursorTimeout(5.0, CURSOR_LIFETIME, NOW, 5.0)


@pytest.mark.parametrize(
    ("limits", "name", "advice"),
    [
        (limits_with(5.0, cursor=LIFE), "getMore", precedence.FOR_CURSOR_LIFETIME),
        (limits_with(5.0, cursor=LIFE), "find", ""),
        (limits_with(4.0, cursor=LIFE), "getMore", ""),
        (limits_with(5.0), "getMore", ""),
        (limits_with(5.0, cursor=CursorTimeout(5.0, ITERATION, NOW, 5.0)), "getMore", ""),
        (limits_with(0.0, cursor=CursorTimeout(0.0, CURSOR_LIFETIME, NOW, 0.0)), "getMore", ""),
        (limits_with(5.0, stream=LIFE), "aggregate", precedence.FOR_RESUME),
        (limits_with(2.0, without_request=(None, PYMONGO)), "find", precedence.FOR_REQUEST),
        (limits_with(5.0), "find", ""),
    ],
)
def test_the_advice_names_what_limited_the_time(limits: Limits, name: str, advice: str) -> None:
    operation: Any = SimpleNamespace(limits=limits, name=name)
    assert precedence.advice(operation) == advice


@pytest.mark.parametrize(
    ("args", "kwargs", "stage"),
    [
        (([{"$match": {}}, {"$out": "totals"}],), {}, "$out"),
        (([{"$merge": {"into": "totals"}}],), {}, "$merge"),
        ((), {"pipeline": [{"$match": {}}, {"$merge": "totals"}]}, "$merge"),
        (([{"$out": "totals"}, {"$match": {}}, {"$sort": {"_id": 1}}],), {}, None),
        (([],), {}, None),
        ((), {}, None),
        ((({"$out": "totals"},),), {}, None),
    ],
)
def test_an_aggregate_writes_if_its_last_stage_does(
    args: tuple[Any, ...], kwargs: dict[str, Any], stage: str | None
) -> None:
    assert write_stage(args, kwargs) == stage
