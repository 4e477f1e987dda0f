"""Finds the document that pymongo's loop sends for an ``insert_one`` or a ``replace_one``.

pymongo passes its loop a closure with a connection as parameter, and nothing else. The collection
and the document are local variables of the function that made the closure, so they are read from
there, only after a failed attempt without a transaction number. The self-check compares their names
with the installed pymongo (``private_names.parts_of_inserts``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .protocols import AnyCollection, Document

COLLECTION, COMMAND, DOCUMENT, UPSERT = "self", "command", "document", "upsert"
"""Local variables of pymongo's ``_insert_one`` and ``_update_retryable``."""


class SentDocument(NamedTuple):
    """The document of one ``insert_one``, or of a ``replace_one`` with ``upsert=True``.
    Immutable.
    """

    collection: AnyCollection
    document: Document
    is_upsert: bool


def document_of(send: Callable[..., Any]) -> SentDocument | None:
    """Return the document that an ``insert_one``, or a ``replace_one`` with ``upsert=True``, sends.

    None for any other operation, and if the installed pymongo has other variables.

    Args:
        send: The function that pymongo's loop calls with a connection.
    """
    if not inspect.isfunction(send):
        return None
    known = inspect.getclosurevars(send).nonlocals
    collection, command = known.get(COLLECTION), known.get(COMMAND)
    if collection is None:
        return None
    if isinstance(command, dict) and "insert" in command:
        (document,) = command["documents"]
        return SentDocument(collection, document, is_upsert=False)
    document = known.get(DOCUMENT, {})
    if known.get(UPSERT) and is_replacement(document):
        return SentDocument(collection, document, is_upsert=True)
    return None


def is_replacement(update: object) -> bool:
    """Return True if an update is a whole document, not update operators or a pipeline."""
    return isinstance(update, Mapping) and not any(name.startswith("$") for name in update)
