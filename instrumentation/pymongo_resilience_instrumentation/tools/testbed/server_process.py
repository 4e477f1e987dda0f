"""Run one process of an ``EmbeddedServer``. Started by its path.

Its arguments are a folder and the command of a mongod; without a command, SecantusDB serves from
that folder. Standard input is a pipe from the parent. Its first line is JSON: the user and the
password of a SecantusDB with access control, or null. However the parent ends, even if it is
killed, the pipe ends. Then this process stops the server and removes the folder.

Prints a number: the process id of a mongod, or the port of SecantusDB.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_PARENT_CHECKED_EVERY = 0.05


def main() -> int:
    """Serve until the program or standard input ends. Return the exit status."""
    folder, *command = sys.argv[1:]
    credentials = json.loads(sys.stdin.buffer.readline())
    if not command:
        _print(_serve(Path(folder), credentials))
        # Returns when the parent ends and the pipe closes.
        sys.stdin.buffer.read()
        shutil.rmtree(folder, ignore_errors=True)
        # Kill it: the data is deleted anyway, and an orderly shutdown would take seconds.
        os._exit(0)
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)  # noqa: S603 - our parent's
    _print(program.pid)
    while (status := program.poll()) is None:
        if select.select([sys.stdin], [], [], _PARENT_CHECKED_EVERY)[0]:
            program.kill()
            program.wait()
            shutil.rmtree(folder, ignore_errors=True)
    return status


def _serve(folder: Path, credentials: tuple[str, str] | None) -> int:
    """Start SecantusDB in threads of this process, and return its port."""
    from secantus import SecantusDBServer  # noqa: PLC0415 - not beside a mongod

    server = SecantusDBServer(
        host="127.0.0.1",
        port=0,
        storage_path=str(folder / "data"),
        enable_test_commands=True,
        cache_size="128M",
    )
    server.start()
    if credentials is not None:
        from pymongo import MongoClient  # noqa: PLC0415 - only access control needs it

        user, password = credentials
        with MongoClient[dict[str, Any]](server.uri) as client:
            client.admin.command("createUser", user, pwd=password, roles=["root"])
        # SecantusDB reads this for each command.
        server.require_auth = True
    return int(server.port)


def _print(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
