"""A server in a network namespace of its own, and a path to it that can begin to drop packets.

Needs Linux, and a process that was started in a network namespace that it may change, as
``unshare -rn`` gives one. A severed path gives no sign: no reset, no error, no acknowledgement.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

from pymongo_resilience_instrumentation.tools.testbed.running import Running
from support.fake_servers import pass_on

from pymongo_resilience.testbed import EmbeddedServer, ReplicaSet

INSIDE = ("unshare", "-rn")
"""What a program is to be started with."""
SERVER = "10.83.0.1"
CLIENT = "10.83.0.{}"


def can_sever() -> bool:
    """Whether this machine allows it."""
    if sys.platform != "linux" or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    trial = [*INSIDE, "ip", "link", "add", "path0", "type", "veth"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


class SeverablePath(Running):
    """Not thread-safe."""

    def __init__(self) -> None:
        self.uri = ""
        self._client = 2
        """The last part of the client's present address."""
        self._children: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        holder = self._child("unshare", "-n", sys.executable, "-c", _HOLD)
        self._inside = ("nsenter", "-t", str(holder.pid), "-n")
        _do("ip link set lo up")
        _do(f"ip link add path0 type veth peer name path1 netns {holder.pid}")
        for number in (2, 3):
            _do(f"ip address add {CLIENT.format(number)}/24 dev path0")
        _do("ip link set path0 up")
        for line in (
            "ip link set lo up",
            f"ip address add {SERVER}/24 dev path1",
            "ip link set path1 up",
        ):
            _do(line, *self._inside)
        server = self._child(*self._inside, sys.executable, "-c", _SERVE)
        self.uri = f"mongodb://{SERVER}:{_line(server)}/?directConnection=true"

    def stop(self) -> None:
        while self._children:
            child = self._children.pop()
            if child.stdin is not None:
                child.stdin.close()
            child.wait()

    def forget_connections(self) -> None:
        """Once: packets of those that exist are dropped from now on, those of new ones are not."""
        self.drop_packets()
        self._client += 1
        _do(f"ip route change 10.83.0.0/24 dev path0 src {CLIENT.format(self._client)}")

    def drop_packets(self) -> None:
        """Everything, from now on."""
        _do(f"ip route add blackhole {CLIENT.format(self._client)}/32", *self._inside)

    def pass_on(self) -> None:
        """Everything again, after ``drop_packets``."""
        _do(f"ip route delete blackhole {CLIENT.format(self._client)}/32", *self._inside)

    def _child(self, *command: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT
        )
        self._children.append(child)
        if command[0] == "unshare":
            _line(child)
        return child


_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
_SERVE = "from support import severable_path; severable_path.main()"
_HOLD = "import sys; print('here', flush=True); sys.stdin.read()"


def _line(child: subprocess.Popen[str]) -> str:
    return "" if child.stdout is None else child.stdout.readline().strip()


def _do(line: str, *before: str) -> None:
    subprocess.run([*before, *line.split()], check=True)


def _accept(listening: socket.socket, behind: tuple[str, int]) -> None:
    while True:
        client, _ = listening.accept()
        server = socket.create_connection(behind)
        for pair in ((client, server), (server, client)):
            threading.Thread(target=pass_on, args=pair, daemon=True).start()


def main() -> None:
    """The server's side: until standard input ends."""
    with EmbeddedServer() as server, ReplicaSet(server.address, members=1) as replica_set:
        listening = socket.create_server((SERVER, 0))
        behind = replica_set.members[0].address
        threading.Thread(target=_accept, args=(listening, behind), daemon=True).start()
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
