"""What the driver calls a server or a collection by, as text: each once."""

from __future__ import annotations

Address = tuple[str, int | None]
"""Host and port; the path and None for a Unix socket."""


def address_text(address: Address) -> str:
    """``"host:port"``, or the path."""
    host, port = address
    return host if port is None else f"{host}:{port}"


def namespace_text(database: str, collection: str | None) -> str:
    """``"db.collection"``, or ``"db"`` where there is no collection."""
    return database if collection is None else f"{database}.{collection}"
