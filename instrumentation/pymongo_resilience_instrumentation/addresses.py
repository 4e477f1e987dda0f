"""What the driver calls a server or a collection by, as text and as attributes: each once."""

from __future__ import annotations

from typing import Any

from pymongo_resilience_instrumentation.telemetry import semconv

Address = tuple[str, int | None]
"""Host and port; the path and None for a Unix socket."""


def address_text(address: Address) -> str:
    """``"host:port"``, or the path."""
    host, port = address
    return host if port is None else f"{host}:{port}"


def address_attributes(address: Address) -> dict[str, Any]:
    host, port = address
    attributes: dict[str, Any] = {semconv.SERVER_ADDRESS: host}
    if port is not None:
        attributes[semconv.SERVER_PORT] = port
    return attributes


def namespace_text(database: str, collection: str | None) -> str:
    """``"db.collection"``, or ``"db"`` where there is no collection."""
    return database if collection is None else f"{database}.{collection}"
