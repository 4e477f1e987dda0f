"""Deadlines for GridFS: one for each method, and one for each stream.

GridFS is wrapped when the application imports it, because most applications never do. Thread-safe:
any thread may import it at any time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import wrapt

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation import driver, self_check
from pymongo_resilience_instrumentation.interceptor import Row
from pymongo_resilience_instrumentation.runtime import Runtime


def plug_in(runtime: Runtime, apply_patches: Callable[[Iterable[Row]], None]) -> None:
    """Wrap GridFS when it is imported, or now if it already is."""
    # wrapt keeps the hook until GridFS is imported, which may never happen. Weak references let
    # ``uninstrument()`` release the runtime.
    apply_patches_later, runtime_then = weakref.WeakMethod(apply_patches), weakref.ref(runtime)

    def wrap(_module: object) -> None:
        apply_patches, runtime = apply_patches_later(), runtime_then()
        if apply_patches is None or runtime is None:
            # uninstrument() was called before GridFS was imported.
            return
        # This runs inside the application's import, which must not fail.
        with contain_internal_errors(
            "while wrapping GridFS, so no timeout covers the whole life of a GridFS stream"
        ):
            if self_check.report_missing(
                driver.private_names.parts_of_gridfs(),
                "GridFS",
                "no timeout covers the whole life of a GridFS stream",
            ):
                return
            from . import stream_deadlines  # noqa: PLC0415 - it imports gridfs

            apply_patches(stream_deadlines.of_gridfs(runtime))

    wrapt.register_post_import_hook(wrap, "gridfs")
