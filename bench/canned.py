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
            "(Debian: apt-get install gcc libc6-dev)"
        )
    return built


class SlowedServer:
    """A replica set of canned replies, of which some come late."""

    def __init__(self, uri: str, child: subprocess.Popen[str]) -> None:
        self.uri = uri
        self._child = child

    def slow(self, member: int, share: float, seconds: float) -> None:
        """This share of the finds that it receives from now on."""
        self._tell(f"{member} {share} {seconds * 1000:.0f}")

    def counts(self) -> list[int]:
        """The finds that each member has received and, as the last number, open cursors."""
        return self._tell("")

    def _tell(self, line: str) -> list[int]:
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the server has no pipes")
        self._child.stdin.write(f"{line}\n")
        self._child.stdin.flush()
        return [int(each) for each in self._child.stdout.readline().split()]


@contextmanager
def canned_server(
    members: int = 1, *, streaming: bool = True, heartbeats: bool = True
) -> Iterator[str]:
    """The URI of a replica set of so many members that answers at once, and always the same.

    Without heartbeats no monitor of the client wakes up while it is measured: in an async client
    each would be as much as an operation, in whichever burst it comes.
    """
    with slowed_server(members, streaming=streaming, heartbeats=heartbeats) as server:
        yield server.uri


@contextmanager
def slowed_server(
    members: int = 1, *, streaming: bool = True, heartbeats: bool = True
) -> Iterator[SlowedServer]:
    """The same, to be slowed down."""
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
        yield SlowedServer(f"mongodb://{hosts}/?replicaSet=canned{options}", child)
    finally:
        child.stdin.close()
        child.wait(10)
