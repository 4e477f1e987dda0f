"""Ports that follow each other, for whoever must name them before they are listened on."""

from __future__ import annotations

import secrets
import socket


def consecutive_free_ports(count: int) -> int:
    """The first of them, below those that the system gives to anybody."""
    for _ in range(1000):
        # At random: other processes of the tests look for some at the same time.
        first = 15_000 + secrets.randbelow(17_000 - count)
        if _are_free(range(first, first + count)):
            return first
    raise AssertionError("no free ports")


def _are_free(ports: range) -> bool:
    sockets = [socket.socket() for _ in ports]
    try:
        for each, port in zip(sockets, ports, strict=True):
            each.bind(("127.0.0.1", port))
    except OSError:
        return False
    finally:
        for each in sockets:
            each.close()
    return True
