"""A DNS server on this machine, with the records that a test gives it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.resolver
import dns.rrset


@contextlib.contextmanager
def resolving(records: dict[tuple[str, str], list[str]], *, silent: bool = False) -> Iterator[None]:
    """By name and type, as text: dnspython's default resolver has them and no others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
        before, dns.resolver.default_resolver = dns.resolver.default_resolver, resolver
        thread = threading.Thread(target=_serve, args=(server, {} if silent else records, silent))
        thread.start()
        try:
            yield
        finally:
            dns.resolver.default_resolver = before
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", server.getsockname())
            thread.join()


def _serve(server: socket.socket, records: dict[tuple[str, str], list[str]], silent: bool) -> None:
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
        found = records.get((asked.name.to_text(omit_final_dot=True), kind))
        if found:
            answer.answer.append(dns.rrset.from_text_list(asked.name, 60, "IN", kind, found))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        server.sendto(answer.to_wire(), peer)
