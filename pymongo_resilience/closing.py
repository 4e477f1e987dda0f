"""Context variables in coroutines and generators that are closed before they finish."""

from __future__ import annotations

from collections import deque
from contextvars import Context, copy_context

kept_variables: deque[Context] = deque(maxlen=16)
"""Used by ``keep_variables``; cleared with the next deferred work."""


def keep_variables() -> None:
    """Make it safe to set context variables while a coroutine or generator is closed.

    The garbage collector may close it in the middle of another ``ContextVar.set`` of the same
    thread. CPython 3.11 then frees the variables that the interrupted call still reads (gh-148891).
    A copy of the context keeps them alive.
    """
    kept_variables.append(copy_context())
