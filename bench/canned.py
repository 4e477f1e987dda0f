"""The canned-reply server: a child process, on a core that its clients are not on."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BUILD = Path(__file__).parent.parent / "build"
SERVER = BUILD / "canned_server"
SELDOM_MS = 3_600_000


def cores() -> tuple[int, int]:
    """That of the clients, and that of the server: the same one where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def need(built: Path) -> Path:
    if not built.exists():
        sys.exit(
            f"{built.name} is not there: 'make bench' compiles it, which needs a C compiler as cc "
            "(Debian: apt-get install gcc libc6-dev, and valgrind to count instructions)"
        )
    return built


@contextmanager
def canned_server(
    members: int = 1, *, streaming: bool = True, heartbeats: bool = True
) -> Iterator[str]:
    """The URI of a replica set of so many members that answers at once, and always the same.

    Without heartbeats no monitor of the client wakes up while it is measured: in an async client
    each would be as much as an operation, in whichever burst it comes.
    """
    child = subprocess.Popen(  # noqa: S603 - our own
        [str(need(SERVER)), str(members), "streaming" if streaming else "polling"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("the server has no pipes")
    os.sched_setaffinity(child.pid, {cores()[1]})
    try:
        hosts = ",".join(f"127.0.0.1:{port}" for port in child.stdout.readline().split())
        options = "" if heartbeats else f"&heartbeatFrequencyMS={SELDOM_MS}"
        yield f"mongodb://{hosts}/?replicaSet=canned{options}"
    finally:
        child.stdin.close()
        child.wait(10)
