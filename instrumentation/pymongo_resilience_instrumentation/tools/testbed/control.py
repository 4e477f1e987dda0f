"""HTTP control of a running deployment, for applications in any language. Listens on 127.0.0.1
only.

    GET /            the URI, the kinds of faults, the drills
    POST /faults     {"fault": "CutAfter", "command": "insert", "times": 2, "on": "primary"}
    GET /faults      the injected faults, and how often each of them has acted
    DELETE /faults   end all faults; with ?strict=true, answer 409 if one of them has never acted
    POST /drills     {"drill": "overload-pulse"}

A web page in a browser must not be able to use it. Requests that name an origin or another host are
refused, and so is a body that is not application/json.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from . import command_faults, member_faults
from .deployment import MAX_PORT, Deployment
from .drills import DRILLS, drill
from .fault import Fault, refused, whole
from .processes import HOST
from .running import Running, TestbedError

KINDS: Final[dict[str, Callable[..., Fault]]] = {
    name: kind
    for module in (command_faults, member_faults)
    for name, kind in vars(module).items()
    if inspect.isclass(kind) and issubclass(kind, Fault) and not inspect.isabstract(kind)
    if kind.__module__ == module.__name__ and kind is not command_faults.Corrupt
}
"""Without Corrupt, because its function cannot be sent."""
_LONGEST_BODY: Final = 65536


class Control(Running):
    """Serves until it is stopped. Thread-safe.

    Args:
        port: The port, or 0 for a free one.
    """

    def __init__(self, deployment: Deployment, port: int = 0) -> None:
        self._deployment = deployment
        self._port = whole("control", port, least=0, most=MAX_PORT)
        self._lock = threading.Lock()
        self._injected: list[tuple[Fault, Any]] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        if self._server is None:
            raise TestbedError("the control is not running: use it in a with block")
        return f"http://{HOST}:{self._server.server_address[1]}"

    def start(self) -> None:
        """Start to serve.

        Raises:
            TestbedError: The port is in use.
        """
        handler = type("Handler", (_Handler,), {"control": self})
        try:
            self._server = ThreadingHTTPServer((HOST, self._port), handler)
        except OSError as error:
            raise TestbedError(f"cannot listen on {HOST}:{self._port}: {error.strerror}") from error
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, method: str, target: str, body: Any) -> tuple[HTTPStatus, Any]:
        """Return the answer to a request.

        Raises:
            ValueError: The request is invalid.
        """
        parts = urlsplit(target)
        match method, parts.path.rstrip("/"):
            case "GET", "":
                about = {"uri": self._deployment.uri, "faults": sorted(KINDS), "drills": [*DRILLS]}
                return HTTPStatus.OK, about
            case "GET", "/faults":
                with self._lock:
                    return HTTPStatus.OK, [_as_json(*each) for each in self._injected]
            case "POST", "/faults":
                return HTTPStatus.CREATED, _as_json(*self._inject(body))
            case "DELETE", "/faults":
                return self._clear(strict=parse_qs(parts.query).get("strict") == ["true"])
            case "POST", "/drills":
                self._deployment.play(drill(body.get("drill"), self._deployment))
                return HTTPStatus.CREATED, body
            case _:
                return HTTPStatus.NOT_FOUND, {"error": f"no {method} {parts.path}"}

    def _inject(self, asked: dict[str, Any]) -> tuple[Fault, Any]:
        options = dict(asked)
        name, on = options.pop("fault", None), options.pop("on", "all")
        kind = KINDS.get(name)
        if kind is None:
            raise refused("fault", name, f"one of {', '.join(sorted(KINDS))}")
        try:
            inspect.signature(kind).bind(**options)
        except TypeError as error:
            raise ValueError(f"{name}{inspect.signature(kind)}: {error}") from None
        fault = kind(**options)
        self._deployment.inject(fault, on)
        with self._lock:
            self._injected.append((fault, on))
        return fault, on

    def _clear(self, *, strict: bool) -> tuple[HTTPStatus, Any]:
        with self._lock:
            self._injected.clear()
        try:
            self._deployment.clear(strict=strict)
        except TestbedError as error:
            return HTTPStatus.CONFLICT, {"error": str(error)}
        return HTTPStatus.OK, {}


class _Handler(BaseHTTPRequestHandler):
    control: Control
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing: standard error is for the faults that act."""

    def do_GET(self) -> None:
        try:
            status, answer = self._answer()
        except ValueError as error:
            status, answer = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except TestbedError as error:
            status, answer = HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}
        data = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def _answer(self) -> tuple[HTTPStatus, Any]:
        host = self.headers.get("Host", "").partition(":")[0]
        # Browsers send an Origin with requests of other sites, and a Host with the site's name
        # after DNS rebinding.
        if "Origin" in self.headers or host not in {HOST, "localhost"}:
            return HTTPStatus.FORBIDDEN, {"error": "not for browsers"}
        body: Any = {}
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LONGEST_BODY:
            # The body stays unread, so the connection cannot be used again.
            self.close_connection = True
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "the body is too long"}
        text = self.rfile.read(length)
        if self.command == "POST":
            if self.headers.get_content_type() != "application/json":
                return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"error": "not application/json"}
            body = json.loads(text)
            if not isinstance(body, dict):
                raise refused("the body", body, "a JSON object")
        return self.control.answer(self.command, self.path, body)


def _as_json(fault: Fault, on: Any) -> dict[str, Any]:
    return {"fault": repr(fault), "on": on, "struck": fault.struck}
