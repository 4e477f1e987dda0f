"""The child process of :class:`~.server.EmbeddedServer`; run by its path.

The first line of its standard input is the user and the password of a server with access control,
as JSON, or null for one without. It prints the port it listens on, then waits for the end of its
standard input. The parent holds the other end of that pipe, so whatever ends the parent, a kill
included, ends this process too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from secantus import SecantusDBServer


def _lock(server: SecantusDBServer, user: str, password: str) -> None:
    """Create the first user, then require authentication, which SecantusDB reads each time."""
    from pymongo import MongoClient  # noqa: PLC0415 - only a server with access control needs it

    client: MongoClient[dict[str, Any]]
    with MongoClient(server.uri) as client:
        client.admin.command("createUser", user, pwd=password, roles=["root"])
    server.require_auth = True


def main() -> None:
    """Serve from the directory named on the command line until standard input ends."""
    directory = Path(sys.argv[1])
    credentials = json.loads(sys.stdin.buffer.readline())
    server = SecantusDBServer(
        host="127.0.0.1",
        port=0,
        storage_path=str(directory / "data"),
        enable_test_commands=True,
        cache_size="128M",
    )
    server.start()
    if credentials is not None:
        _lock(server, *credentials)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    shutil.rmtree(directory, ignore_errors=True)
    # The data is gone, and an orderly shutdown is of no use, which takes seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
