"""The child process of :class:`~.server.EmbeddedServer`; run by its path, imported by nobody.

It prints the port it listens on, then waits for the end of its standard input. The parent holds
the other end of that pipe, so whatever ends the parent, a kill included, ends this process too.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from secantus import SecantusDBServer


def main() -> None:
    """Serve from the directory named on the command line until standard input ends."""
    directory = Path(sys.argv[1])
    server = SecantusDBServer(
        host="127.0.0.1",
        port=0,
        storage_path=str(directory / "data"),
        enable_test_commands=True,
        cache_size="128M",
    )
    server.start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    shutil.rmtree(directory, ignore_errors=True)
    # The data is gone and nobody waits for an orderly shutdown, which takes seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
