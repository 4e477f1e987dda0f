"""What pymongo's loop sends for an ``insert_one`` or a ``replace_one``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .protocols import AnyCollection, Document


class SentDocument(NamedTuple):
    """A document that one command stores as a whole, unless it is there. Immutable."""

    collection: AnyCollection
    document: Document
    is_upsert: bool


def document_of(send: Callable[..., Any]) -> SentDocument | None:
    """Return what an ``insert_one`` inserts, or a ``replace_one`` with ``upsert=True`` may insert.

    None for anything else. pymongo 4.20 gives its loop a closure over these. If it does not, no
    document is recognized.
    """
    if not inspect.isfunction(send):
        return None
    known = inspect.getclosurevars(send).nonlocals
    collection, command = known.get("self"), known.get("command")
    if collection is None:
        return None
    if isinstance(command, dict) and "insert" in command:
        (document,) = command["documents"]
        return SentDocument(collection, document, is_upsert=False)
    document = known.get("document", {})
    if known.get("upsert") and is_replacement(document):
        return SentDocument(collection, document, is_upsert=True)
    return None


def is_replacement(update: object) -> bool:
    """Return True for a whole document, as opposed to update operators or a pipeline."""
    return isinstance(update, Mapping) and not any(name.startswith("$") for name in update)
