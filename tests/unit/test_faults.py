"""What becomes of an internal error: it is logged where it was, and goes no further."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context

import pytest
from pymongo import _asyncio_lock

from pymongo_resilience import internal_errors


def closed(error: BaseException, context: BaseException | None = None) -> BaseException:
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    ("error", "closing"),
    [
        (None, False),
        (GeneratorExit(), True),
        (closed(RuntimeError(), GeneratorExit()), True),
        (closed(RuntimeError(), ValueError()), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_what_closes_a_coroutine(error: BaseException | None, closing: bool) -> None:
    assert internal_errors.is_closing(error) is closing


async def ignoring() -> None:
    with suppress(GeneratorExit):
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def ignored() -> None:
    coroutine = ignoring()
    coroutine.send(None)
    coroutine.close()


def reset_elsewhere() -> None:
    variable: ContextVar[int] = ContextVar("variable")
    token = copy_context().run(variable.set, 1)
    variable.reset(token)


@pytest.mark.parametrize(
    "raise_it",
    [asyncio.Lock().release, _asyncio_lock.Lock().release, ignored, reset_elsewhere],
    ids=["asyncio's lock", "pymongo's lock", "GeneratorExit ignored", "another context"],
)
def test_what_takes_the_place_of_a_generator_exit_is_known(raise_it: Callable[[], None]) -> None:
    """By its text, which CPython and pymongo may change."""
    with pytest.raises((RuntimeError, ValueError)) as raised:
        raise_it()
    assert internal_errors.is_closing(raised.value)


def test_a_shielded_fault_is_logged_where_it_was_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with internal_errors.shielded("here"):
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
    with pytest.raises(error), internal_errors.shielded("here"):
        raise error
    assert not caplog.records
