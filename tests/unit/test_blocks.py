"""A policy holds for its block: not before, not after, however and wherever the block is left."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pymongo_resilience.policies import blocks
from pymongo_resilience.policies.blocks import current, override, timed
from pymongo_resilience.policies.policy import EMPTY_POLICY


def declared() -> bool | None:
    return current().idempotent


def in_new_context(function: Callable[[], Any]) -> Any:
    return contextvars.Context().run(function)


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(10)


def holding() -> Iterator[bool | None]:
    with override(idempotent=True):
        yield declared()
    yield declared()


def innermost() -> blocks.Block | None:
    return blocks._innermost.get()


def test_a_block_that_a_generator_holds_open_ends_with_it() -> None:
    first, second = holding(), holding()
    assert (next(first), next(second)) == (True, True)
    first.close()  # type: ignore[attr-defined]  # a generator
    assert list(second) == [None]
    assert current() is EMPTY_POLICY


def test_blocks_that_are_left_out_of_order() -> None:
    first, second, third = (override(data={str(number): 1}) for number in range(3))
    for block in (first, second, third):
        block.__enter__()
    second.__exit__(None, None, None)
    assert current().data == {"2": 1}
    third.__exit__(None, None, None)
    assert current().data == {"0": 1}
    first.__exit__(None, None, None)
    assert current() is EMPTY_POLICY
    assert innermost() is None


def leave_in_new_context(block: override) -> None:
    in_new_context(lambda: block.__exit__(None, None, None))


def leave_in_thread(block: override) -> None:
    in_thread(lambda: block.__exit__(None, None, None))


def leave_by_an_error(block: override) -> None:
    block.__exit__(LookupError, LookupError(), None)


def leave_as_if_collected(block: override) -> None:
    block.__exit__(GeneratorExit, GeneratorExit(), None)


LEAVING = [leave_in_new_context, leave_in_thread, leave_by_an_error, leave_as_if_collected]


@pytest.mark.parametrize("leave", LEAVING)
def test_a_block_that_is_left_anywhere_holds_nowhere(leave: Callable[[override], None]) -> None:
    inherited = []
    block = override(idempotent=True, timeout_ms=5)
    with override(data={"outer": 1}):
        block.__enter__()
        inherited.append(contextvars.copy_context())
        assert inherited[0].run(declared) is True
        leave(block)
        assert (declared(), current().data, timed()) == (None, {"outer": 1}, None)
        assert inherited[0].run(declared) is None
    assert current() is EMPTY_POLICY
    assert inherited[0].run(current) is EMPTY_POLICY


def test_leaving_once_more_is_without_effect() -> None:
    block = override(idempotent=True)
    with override(data={"outer": 1}):
        with block:
            pass
        with contextlib.suppress(IndexError):
            block.__exit__(None, None, None)
        assert current().data == {"outer": 1}


@pytest.mark.parametrize("collected_in", [in_new_context, in_thread])
def test_a_generator_that_is_collected_elsewhere_leaves_nothing_in_force(
    collected_in: Callable[[Callable[[], Any]], Any],
) -> None:
    with override(data={"outer": 1}):
        held = [holding()]
        next(held[0])
        collected_in(held.clear)
        gc.collect()
        block = innermost()
        assert block is not None
        assert block.ended
        assert current().data == {"outer": 1}
        assert declared() is None
    assert current() is EMPTY_POLICY


def test_a_finalizer_sets_no_context_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 may collect inside of ContextVar.set, where another one frees what it reads."""
    held = [holding()]
    next(held[0])
    ended = innermost()

    class Variable:
        get = staticmethod(lambda: ended)
        set = None

    monkeypatch.setattr(blocks, "_innermost", Variable)
    held.clear()
    gc.collect()
    assert ended is not None
    assert ended.ended


@contextlib.contextmanager
def patient() -> Iterator[None]:
    with override(idempotent=True, timeout_ms=50):
        yield


@contextlib.asynccontextmanager
async def patient_async() -> AsyncIterator[None]:
    async with override(idempotent=True, timeout_ms=50):
        yield


@contextlib.contextmanager
def around_patient() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(patient())
        yield


class Patient:
    """A context manager of the application's own."""

    def __enter__(self) -> None:
        self.block = override(idempotent=True)
        self.block.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.block.__exit__(*raised)


@pytest.mark.parametrize("manager", [patient, around_patient, Patient])
def test_a_context_manager_of_the_applications_own(manager: Any) -> None:
    @patient()
    def decorated() -> bool | None:
        return declared()

    async def child() -> bool | None:
        return declared()

    async def main() -> bool | None:
        with manager():
            return await asyncio.create_task(child())

    with manager():
        assert declared() is True
        assert contextvars.copy_context().run(declared) is True
    assert current() is EMPTY_POLICY
    assert decorated() is True
    assert asyncio.run(main()) is True
    assert current() is EMPTY_POLICY


def test_an_async_context_manager_of_the_applications_own() -> None:
    async def child() -> bool | None:
        return declared()

    async def main() -> None:
        async with patient_async():
            assert declared() is True
            assert await asyncio.gather(child(), child()) == [True, True]
        assert current() is EMPTY_POLICY

    asyncio.run(main())


def test_one_instance_in_two_contexts_that_leave_in_any_order() -> None:
    """As in two threads or tasks."""
    block = override(idempotent=True)
    first, second = (contextvars.copy_context().run for _ in range(2))
    first(block.__enter__)
    second(block.__enter__)
    assert declared() is None
    first(block.__exit__, None, None, None)
    assert (first(declared), second(declared)) == (None, True)
    second(block.__exit__, None, None, None)
    assert second(declared) is None


def test_one_instance_that_is_left_elsewhere_ends_where_it_was_entered_last() -> None:
    block = override(idempotent=True)
    contexts = [contextvars.copy_context() for _ in range(3)]
    for each in contexts:
        each.run(block.__enter__)
    for left in (2, 1, 0):
        in_new_context(lambda: block.__exit__(None, None, None))
        held = [True] * left + [None] * (3 - left)
        assert [each.run(declared) for each in contexts] == held


def test_a_decorated_generator_function_holds_for_each_step() -> None:
    closed = []

    @override(idempotent=True)
    def pages(count: int) -> Generator[Any, Any, str]:
        """Pages."""
        try:
            for number in range(count):
                try:
                    sent = yield number, declared()
                except LookupError:
                    sent = "handled"
                if sent is not None:
                    yield sent, declared()
        finally:
            closed.append(declared())
        return "done"

    assert inspect.isgeneratorfunction(pages)
    assert pages.__doc__ == "Pages."
    assert [(page, declared()) for page in pages(2)] == [((0, True), None), ((1, True), None)]
    steps = pages(2)
    assert next(steps) == (0, True)
    assert steps.send("sent") == ("sent", True)
    assert next(steps) == (1, True)
    assert steps.throw(LookupError()) == ("handled", True)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value == "done"
    steps = pages(2)
    next(steps)
    steps.close()
    assert closed == [True, True, True], "what close() runs included"
    assert current() is EMPTY_POLICY


def test_a_decorated_async_generator_function_holds_for_each_step() -> None:
    closed = []

    @override(idempotent=True)
    async def pages(count: int) -> Any:
        """Pages."""
        try:
            for number in range(count):
                await asyncio.sleep(0)
                try:
                    sent = yield number, declared()
                except LookupError:
                    sent = "handled"
                if sent is not None:
                    yield sent, declared()
        finally:
            await asyncio.sleep(0)
            closed.append(declared())

    async def main() -> None:
        found = [(page, declared()) async for page in pages(2)]
        assert found == [((0, True), None), ((1, True), None)]
        steps = pages(2)
        assert await anext(steps) == (0, True)
        assert await steps.asend("sent") == ("sent", True)
        assert await anext(steps) == (1, True)
        assert await steps.athrow(LookupError()) == ("handled", True)
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        steps = pages(2)
        await anext(steps)
        await steps.aclose()
        steps = pages(2)
        await anext(steps)
        with pytest.raises(ValueError, match="thrown"):
            await steps.athrow(ValueError("thrown"))
        assert current() is EMPTY_POLICY

    assert inspect.isasyncgenfunction(pages)
    assert pages.__doc__ == "Pages."
    asyncio.run(main())
    assert closed == [True, True, True, True], "what aclose() runs included"


def test_what_is_called_like_a_coroutine_or_generator_function_is_one() -> None:
    class Coroutine:
        async def __call__(self) -> bool | None:
            await asyncio.sleep(0)
            return declared()

    class Steps:
        def __call__(self) -> Iterator[bool | None]:
            yield declared()

    async def coroutine(_: int) -> bool | None:
        return declared()

    decorate: Any = override(idempotent=True)
    assert asyncio.run(decorate(Coroutine())()) is True
    assert asyncio.run(decorate(functools.partial(coroutine, 1))()) is True
    assert list(decorate(Steps())()) == [True]
    assert isinstance(decorate(Coroutine)(), Coroutine)


def test_ended_blocks_are_not_kept() -> None:
    def chain() -> int:
        length, block = 0, innermost()
        while block is not None:
            length, block = length + 1, block.outer
        return length

    blocks_ = [override(idempotent=True) for _ in range(100)]
    blocks_[0].__enter__()
    for before, after in itertools.pairwise(blocks_):
        after.__enter__()
        before.__exit__(None, None, None)
        assert chain() <= 2
    blocks_[-1].__exit__(None, None, None)
    assert current() is EMPTY_POLICY
    assert innermost() is None


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_a_signal_in_the_middle_leaves_nothing_in_force(method: str) -> None:
    """Raised at each line in turn, as the handler of a signal would; the first line of leaving is
    what cannot be guarded: nothing has run then."""

    class Signal(BaseException):
        pass

    module = blocks.__file__
    lines = 1 if method == "__exit__" else 0
    while True:
        seen = 0

        def trace(frame: Any, event: str, _: Any, lines: int = lines) -> Any:
            nonlocal seen
            if frame.f_code.co_filename != module:
                return None
            if event == "line":
                seen += 1
                if seen > lines:
                    raise Signal
            return trace

        block = override(idempotent=True)
        before = sys.gettrace()
        try:
            if method == "__exit__":
                block.__enter__()
            sys.settrace(trace)
            try:
                getattr(block, method)(*([None] * 3 if method == "__exit__" else []))
            finally:
                sys.settrace(before)
        except Signal:
            assert current() is EMPTY_POLICY, lines
            lines += 1
        else:
            assert seen <= lines
            break
    if method == "__enter__":
        block.__exit__(None, None, None)
    assert lines > 3
    assert current() is EMPTY_POLICY
