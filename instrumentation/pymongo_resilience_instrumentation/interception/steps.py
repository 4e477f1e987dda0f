"""Logic that waits several times, written once: a generator yields what is to be called, and gets
its result or its error."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Steps = Generator[Callable[[], Any], Any, Any]


def run(steps: Steps) -> Any:
    """An exception of a signal handler may strike at any line: what it leaves unfinished is closed
    at once."""
    try:
        call = next(steps)
        while True:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the generator's to handle
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as done:
        return done.value
    except BaseException:
        steps.close()
        raise


async def run_async(steps: Steps) -> Any:
    try:
        call = next(steps)
        while True:
            try:
                result = await call()
            except BaseException as error:  # noqa: BLE001 - as above
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as done:
        return done.value
    except BaseException:
        steps.close()
        raise
