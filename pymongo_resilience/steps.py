"""Logic that waits several times, written once: a generator yields what is to be called, and gets
its result or its error."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Steps = Generator[Callable[[], Any], Any, Any]


def run(steps: Steps) -> Any:
    """An exception of a signal handler may strike at any line: what it leaves unfinished is closed
    at once."""
    result = error = None
    try:
        while True:
            # Outside of the handler, or it would be the context of what the generator raises.
            call = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - the generator's to handle
                error = raised
    except StopIteration as done:
        return done.value
    finally:
        steps.close()
        del error  # its frames hold this one


async def run_async(steps: Steps) -> Any:
    result = error = None
    try:
        while True:
            call = steps.send(result) if error is None else steps.throw(error)
            result = error = None
            try:
                result = await call()
            except BaseException as raised:  # noqa: BLE001 - as above
                error = raised
    except StopIteration as done:
        return done.value
    finally:
        steps.close()
        del error
