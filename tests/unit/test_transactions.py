"""What is repeated after an error in a transaction, and after which pause."""

from __future__ import annotations

import pytest

from pymongo_resilience.transactions import Repeat, pause, repeat

TRANSIENT, UNKNOWN = "TransientTransactionError", "UnknownTransactionCommitResult"


@pytest.mark.parametrize(
    ("labels", "code", "committing", "expected"),
    [
        ((), None, False, Repeat.NOTHING),
        ((), 112, True, Repeat.NOTHING),
        ((TRANSIENT,), 112, False, Repeat.TRANSACTION),
        ((TRANSIENT,), 112, True, Repeat.TRANSACTION),
        ((UNKNOWN,), 64, True, Repeat.COMMIT),
        ((UNKNOWN, TRANSIENT), None, True, Repeat.COMMIT),
        ((UNKNOWN,), 50, True, Repeat.NOTHING),
        ((UNKNOWN,), None, False, Repeat.NOTHING),
    ],
)
def test_what_is_repeated(
    labels: tuple[str, ...], code: int | None, *, committing: bool, expected: Repeat
) -> None:
    assert repeat(labels.__contains__, code, committing=committing) is expected


def test_pauses_grow_to_half_a_second() -> None:
    assert [pause(retry, lambda: 1.0) for retry in (1, 2, 3)] == pytest.approx(
        [0.0075, 0.01125, 0.016875]
    )
    assert pause(10_000, lambda: 0.5) == 0.25
