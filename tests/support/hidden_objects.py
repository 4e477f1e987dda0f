"""Objects that exist before the first test are hidden from the garbage collector.

Thousands of tests are not garbage: visiting them took a fifth of the time of a run. A test that
inspects all objects shows them, and they are hidden again after it.
"""

from __future__ import annotations

import gc

_shown = False


def hide() -> None:
    """Hide everything that exists now."""
    global _shown  # noqa: PLW0603 - as the collector's own state, it is one for the process
    gc.freeze()
    _shown = False


def show() -> None:
    """Show everything, until the end of the current test."""
    global _shown  # noqa: PLW0603 - as above
    gc.unfreeze()
    _shown = True


def hide_again() -> None:
    """Hide what a test has shown. Called after each test."""
    if _shown:
        # What the test itself has left, and not everything: that would take half a second.
        gc.collect(1)
        hide()
