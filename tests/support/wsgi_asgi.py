"""One request to an ASGI or a WSGI application, as a server hands it over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any


def asgi_scope(headers: Mapping[str, str], path: str = "/") -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http", "method": "GET", "path": path, "headers": raw}


async def ask_asgi_in_task(
    app: Any, headers: Mapping[str, str], path: str = "/"
) -> tuple[int, bytes]:
    """Status and body."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(asgi_scope(headers, path), receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent)


def ask_asgi(app: Any, headers: Mapping[str, str]) -> tuple[int, bytes]:
    return asyncio.run(ask_asgi_in_task(app, headers))


def ask_wsgi(app: Any, headers: Mapping[str, str]) -> tuple[int, bytes]:
    environ = {"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers.items()}
    status: list[int] = []
    body = app(environ, lambda line, _headers, *_: status.append(int(line.partition(" ")[0])))
    try:
        return_value = b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()
    return status[0], return_value
