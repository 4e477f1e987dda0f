"""A DNS server on this machine, with the records that a test gives it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.resolver
import dns.rrset


@dataclass
class Faults:
    """What happens to the next questions of a type. Written by the test, read by the server."""

    kind: str = ""
    """``"SRV"`` or ``"TXT"``."""
    left: float = 0
    """How many questions."""
    rcode: str | None = None
    """The answer's; None drops the question."""
    seen: int = 0
    """How many questions there were."""

    def strikes(self, kind: str) -> bool:
        self.seen += 1
        if kind != self.kind or self.left <= 0:
            return False
        self.left -= 1
        return True


@contextlib.contextmanager
def resolving(
    records: dict[tuple[str, str], list[str]], *, silent: bool = False
) -> Iterator[Faults]:
    """By name and type, as text: dnspython's default resolvers have them and no others."""
    faults = Faults()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
        asyncs = dns.asyncresolver.Resolver(configure=False)
        asyncs.nameservers, asyncs.port = resolver.nameservers, resolver.port
        before, dns.resolver.default_resolver = dns.resolver.default_resolver, resolver
        also, dns.asyncresolver.default_resolver = dns.asyncresolver.default_resolver, asyncs
        thread = threading.Thread(
            target=_serve, args=(server, {} if silent else records, faults, silent)
        )
        thread.start()
        try:
            yield faults
        finally:
            dns.resolver.default_resolver = before
            dns.asyncresolver.default_resolver = also
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", server.getsockname())
            thread.join()


def _serve(
    server: socket.socket,
    records: dict[tuple[str, str], list[str]],
    faults: Faults,
    silent: bool,
) -> None:
    while True:
        data, peer = server.recvfrom(4096)
        if not data:
            return
        if silent:
            continue
        question = dns.message.from_wire(data)
        asked = question.question[0]
        kind = dns.rdatatype.to_text(asked.rdtype)
        answer = dns.message.make_response(question)
        if faults.strikes(kind):
            if faults.rcode is not None:
                answer.set_rcode(dns.rcode.from_text(faults.rcode))
                server.sendto(answer.to_wire(), peer)
            continue
        found = records.get((asked.name.to_text(omit_final_dot=True), kind))
        if found:
            answer.answer.append(dns.rrset.from_text_list(asked.name, 60, "IN", kind, found))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        server.sendto(answer.to_wire(), peer)
