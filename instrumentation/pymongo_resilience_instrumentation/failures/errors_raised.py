"""Errors that are raised in another place than where they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSED = "Cannot use MongoClient after close"
"""As the driver puts it."""


def end_with(leave: Callable[[Any, Any], Any], what: Any, error: BaseException) -> None:
    """Leave what ended with ``error``; raises, where the application is to get another one."""
    ends_with = leave(what, error)
    try:
        if ends_with is not error:
            raise_alone(ends_with)
    finally:
        # As below: a frame that holds the error it raised keeps both alive.
        del ends_with, error


def raise_alone(error: BaseException) -> NoReturn:
    """An exception that the application is handling right now is not the context of this one."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        # The traceback holds this frame: without this, frame and error keep each other alive.
        del error
