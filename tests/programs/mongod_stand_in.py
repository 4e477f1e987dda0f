"""SecantusDB with the command-line options of mongod and mongos, and what they answer to set-up.

Where no mongod is installed, it covers what starts and talks to one. It does not replicate.
"""

from __future__ import annotations

import argparse
import stat
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from secantus import SecantusDBServer, commands

HOST = "127.0.0.1"
OK = {"ok": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bind_ip", choices=[HOST], required=True)
    parser.add_argument("--dbpath", default=None)
    for name in ("replSet", "keyFile", "setParameter", "oplogSize", "wiredTigerCacheSizeGB"):
        parser.add_argument(f"--{name}", action="append")
    parser.add_argument("--configdb")
    for flag in ("auth", "nounixsocket", "quiet", "configsvr", "shardsvr"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    if options.keyFile:
        assert stat.S_IMODE(Path(options.keyFile[0]).stat().st_mode) == 0o600
    server = SecantusDBServer(
        host=HOST,
        port=options.port,
        storage_path=options.dbpath or tempfile.mkdtemp(),
        replica_set_name=options.replSet[0] if options.replSet else None,
        cache_size="128M",
    )
    stand_in(server, locks=bool(options.keyFile or options.auth))
    server.start()
    threading.Event().wait()


def stand_in(server: SecantusDBServer, *, locks: bool) -> None:
    """Answer set-up as mongod does, and hide what tells SecantusDB from it."""
    handlers: dict[str, Any] = commands._HANDLERS
    plain_info, create_user = handlers["buildInfo"], handlers["createUser"]

    def info(body: Any, context: Any) -> Any:
        reply: dict[str, Any] = plain_info(body, context)
        return {name: value for name, value in reply.items() if name != "secantusVersion"}

    def first_user(body: Any, context: Any) -> Any:
        reply = create_user(body, context)
        server.require_auth = locks
        return reply

    handlers |= {
        "buildInfo": info,
        "createUser": first_user,
        "replSetInitiate": lambda *_: OK,
        "replSetGetStatus": lambda *_: OK | {"members": [{"stateStr": "SECONDARY"}] * 3},
        "replSetStepDown": lambda *_: OK,
        "addShard": lambda *_: OK,
    }


if __name__ == "__main__":
    sys.exit(main())
