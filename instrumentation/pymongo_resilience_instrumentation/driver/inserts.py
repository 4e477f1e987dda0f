"""What pymongo's loop sends for an ``insert_one``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocols import AnyCollection, Document


def document_of(send: Callable[..., Any]) -> tuple[AnyCollection, Document] | None:
    """Return the collection and the document of an ``insert_one``, or None for anything else.

    pymongo 4.20 passes its loop a closure over both. If that changes, no insert is recognized.
    """
    if not inspect.isfunction(send):
        return None
    known = inspect.getclosurevars(send).nonlocals
    command, collection = known.get("command"), known.get("self")
    if not isinstance(command, dict) or "insert" not in command or collection is None:
        return None
    (document,) = command["documents"]
    return collection, document
