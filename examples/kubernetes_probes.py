"""A service with the two probes of Kubernetes. Neither of them asks the database.

MONGODB_URI=mongodb://localhost:27017 python kubernetes_probes.py

    livenessProbe:  {httpGet: {path: /livez, port: 8000}}
    readinessProbe: {httpGet: {path: /readyz, port: 8000}, periodSeconds: 5, failureThreshold: 1}
"""

from __future__ import annotations

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pymongo import MongoClient

from pymongo_resilience import instrument, readiness

instrument(timeout_ms=20_000)
client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGODB_URI"])


class Probes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/livez":
            # The process answers. A database that is away is no reason to restart it.
            self.answer(200, {"alive": True})
        elif self.path == "/readyz":
            found = readiness(client, grace_ms=15_000)
            facts = {"why_not": found.why_not, "since": found.since}
            self.answer(200 if found.ready_to_write else 503, facts)
        else:
            self.answer(404, {})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Probes come every few seconds: no line for each."""


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Probes) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
