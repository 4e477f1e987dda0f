"""Coroutines that are closed before they have finished, as the garbage collector does.

They may end in another context, inside an allocation, or while the same thread holds a lock. So
their cleanup calls no foreign code, takes no lock, and sets or resets no context variable.
"""

from __future__ import annotations

import inspect
import traceback

MOST_LINKS = 32
"""Of a chain of contexts, which an application may have closed to a ring."""
REPLACES = (
    "coroutine ignored GeneratorExit",
    "Lock is not acquired",
    "was created in a different Context",
)
"""How the errors end that may take the place of the GeneratorExit: where what is closed waits once
more, releases a lock that it waited for, or resets a variable of the context that it ran in. In a
coroutine that handles another exception meanwhile, CPython makes that one their context."""


def closes_a_coroutine(error: BaseException | None) -> bool:
    """Whether ``error`` closes a coroutine, or was raised meanwhile: what is cleaned up then may
    fail, and its error takes the place of the GeneratorExit.

    The end of a generator is none: what it sends in its ``finally`` is an operation like any other.
    """
    for _ in range(MOST_LINKS):
        if error is None:
            return False
        if isinstance(error, GeneratorExit) or _replaces_one(error):
            return any(
                frame.f_code.co_flags & inspect.CO_COROUTINE
                for frame, _ in traceback.walk_tb(error.__traceback__)
            )
        error = error.__context__
    return False


def _replaces_one(error: BaseException) -> bool:
    if type(error) is not RuntimeError and type(error) is not ValueError:
        return False
    text = error.args[0] if error.args else None
    return isinstance(text, str) and text.endswith(REPLACES)
