"""GridFS, wrapped once the application has imported it: most never do, and it is large. Each method
and each stream has one deadline.

Thread-safe: the application may import it in any thread, and at any time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import pymongo
import wrapt

from pymongo_resilience.internal_errors import contain_internal_errors, logger
from pymongo_resilience_instrumentation import driver, self_check
from pymongo_resilience_instrumentation.interceptor import Row
from pymongo_resilience_instrumentation.runtime import Runtime


def plug_in(runtime: Runtime, apply_patches: Callable[[Iterable[Row]], None]) -> None:
    """Now, where it is imported already."""
    # wrapt keeps the hook until GridFS is imported, which most processes never do.
    apply_patches_later, runtime_then = weakref.WeakMethod(apply_patches), weakref.ref(runtime)

    def wrap(_module: object) -> None:
        apply_patches, runtime = apply_patches_later(), runtime_then()
        if apply_patches is None or runtime is None:  # uninstrument() came first
            return
        # Inside of the application's import, which must not fail for it.
        with contain_internal_errors(
            "while wrapping GridFS: its streams have no timeout as a whole"
        ):
            lacking = self_check.missing(driver.private_names.parts_of_gridfs())
            if lacking:
                logger.error(
                    "pymongo %s lacks %s: streams of GridFS have no timeout as a whole",
                    pymongo.version,
                    ", ".join(name for names in lacking.values() for name in names),
                )
                return
            from . import stream_deadlines  # noqa: PLC0415 - it imports gridfs

            apply_patches(stream_deadlines.of_gridfs(runtime))

    wrapt.register_post_import_hook(wrap, "gridfs")
