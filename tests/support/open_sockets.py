"""The sockets that this process really has, as Linux tells them."""

from __future__ import annotations

from pathlib import Path


def inodes_to(port: int) -> set[str]:
    """Of this process's connections to a port of this machine, in whatever state."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(str(descriptor.readlink()))
        except OSError:  # closed meanwhile
            continue
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port and f"socket:[{fields[9]}]" in own:
            found.add(fields[9])
    return found
