"""Addresses and namespaces as text."""

from __future__ import annotations

Address = tuple[str, int | None]
"""Host and port. For a Unix socket, the path and None."""


def address_text(address: Address) -> str:
    """Return ``"host:port"``, or the path of a Unix socket."""
    host, port = address
    return host if port is None else f"{host}:{port}"


def namespace_text(database: str, collection: str | None) -> str:
    """Return ``"db.collection"``, or ``"db"`` if there is no collection."""
    return database if collection is None else f"{database}.{collection}"
