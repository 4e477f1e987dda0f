"""GridFS is wrapped once the application has imported it: most never do, and it is large.

Thread-safe: the application may import it in any thread, and at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import wrapt

from pymongo_resilience.internal_errors import shielded
from pymongo_resilience_instrumentation import driver, self_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from pymongo_resilience_instrumentation.interception.interceptor import Wrapped
    from pymongo_resilience_instrumentation.runtime import Runtime

    Wrap = Callable[[Iterable[Wrapped]], None]


_waiting: list[tuple[Runtime, Wrap]] = []
"""At most one, of the instrument() in force; taken once."""


def wrap_when_imported(runtime: Runtime, wrap: Wrap) -> None:
    """Now, where it is imported already."""
    _waiting[:] = [(runtime, wrap)]
    wrapt.register_post_import_hook(_wrap, "gridfs")


def forget() -> None:
    """What is imported from now on stays as it is: a hook cannot be taken back."""
    _waiting.clear()


def _wrap(_: ModuleType) -> None:
    """Runs inside of the application's import, which must not fail for it."""
    try:
        runtime, wrap = _waiting.pop()
    except IndexError:
        return
    with shielded("while wrapping GridFS: its streams have no timeout as a whole"):
        if self_check.log_missing(driver.private_names.parts_of_gridfs()):
            return
        from . import stream_deadlines  # noqa: PLC0415 - it imports gridfs

        wrap(stream_deadlines.of_gridfs(runtime))
