"""Finds the document that pymongo's loop sends for an ``insert_one`` or a ``replace_one``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .protocols import AnyCollection, Document


class SentDocument(NamedTuple):
    """The document of one ``insert_one``, or of a ``replace_one`` with ``upsert=True``.
    Immutable.
    """

    collection: AnyCollection
    document: Document
    is_upsert: bool


def document_of(send: Callable[..., Any]) -> SentDocument | None:
    """Return the document that an ``insert_one``, or a ``replace_one`` with ``upsert=True``, sends.

    None for any other operation. pymongo 4.20 passes its loop a closure, ``send``, that contains
    the collection and the document. If another version does not, the result is None as well.
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
    """Return True if an update is a whole document, not update operators or a pipeline."""
    return isinstance(update, Mapping) and not any(name.startswith("$") for name in update)
