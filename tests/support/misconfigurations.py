"""Deployments that an application cannot use, each planted on real sockets, with what is wrong.

The doctor names each; the error of a failed selection ends with the same words where it is one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymongo
import pytest
import trustme
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from support import fake_servers
from support.fake_servers import BlackHolePort, Peer, with_tls
from support.wait_helpers import NOBODY

from pymongo_resilience.testbed import EmbeddedServer, Interception, Overload, ReplicaSet

PASSWORD = "c4n/ary:p@ss?w#rd"
"""With every character that has a meaning in a URI."""
LONG_AGO = dt.datetime.now(dt.UTC) - dt.timedelta(days=30)


@dataclass
class World:
    """A server, one with users, and an authority that clients trust."""

    server: tuple[str, int]
    locked: EmbeddedServer
    authority: trustme.CA
    file: Path

    @classmethod
    def made(cls, server: EmbeddedServer, locked: EmbeddedServer, folder: Path) -> World:
        authority, file = trustme.CA(), folder / "authority.pem"
        authority.cert_pem.write_to_path(str(file))
        return cls(server.address, locked, authority, file)

    def tls(self, uri: str) -> str:
        separator = "&" if "?" in uri else "/?"
        return f"{uri}{separator}tls=true&tlsCAFile={quote(str(self.file), safe='')}"

    def behind(
        self, certificate: trustme.LeafCert, *, requires_one: bool = False, newest: str = "TLSv1_3"
    ) -> fake_servers.Behaviour:
        """The server shows this certificate, and may require one of its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = ssl.TLSVersion[newest]
        certificate.configure_cert(context)
        if requires_one:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return with_tls(self.server, context)

    def as_user(self, user: str, password: str, database: str = "") -> str:
        host, port = self.locked.address
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"mongodb://{login}@{host}:{port}/{database}?authSource=admin"


@pytest.fixture(scope="module")
def world(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with EmbeddedServer(user="root", password="root") as locked:
        yield World.made(server, locked, tmp_path_factory.mktemp("tls"))


Planted = Callable[[World], AbstractContextManager[str]]


def behind(meet: Callable[[World], fake_servers.Behaviour], *, tls: bool = True) -> Planted:
    @contextlib.contextmanager
    def planted(world: World) -> Iterator[str]:
        with Peer(meet(world)) as peer:
            yield world.tls(peer.uri) if tls else peer.uri

    return planted


def certificate(**issued: Any) -> Planted:
    return behind(lambda world: world.behind(world.authority.issue_cert("127.0.0.1", **issued)))


def _requires_one(newest: str) -> Planted:
    return behind(
        lambda world: world.behind(
            world.authority.issue_cert("127.0.0.1"), requires_one=True, newest=newest
        )
    )


@contextlib.contextmanager
def _black_hole(world: World) -> Iterator[str]:
    with BlackHolePort(world.server) as port:
        port.shut()
        yield port.uri


@contextlib.contextmanager
def _tls_to_plain(world: World) -> Iterator[str]:
    with ReplicaSet(world.server, members=1) as running:
        yield world.tls(running.uri)


@contextlib.contextmanager
def _set_name(world: World) -> Iterator[str]:
    with ReplicaSet(world.server, members=1) as running:
        yield running.uri.replace("rs0", "other")


class _OtherNames(Interception):
    """The members' names as they are inside of a container."""

    def on_hello(self, reply: dict[str, Any]) -> None:
        self.injected += 1
        reply.update(hosts=["mongo-0.invalid:27017", "mongo-1.invalid:27017"])
        reply.update(me="mongo-0.invalid:27017", primary="mongo-0.invalid:27017")


@contextlib.contextmanager
def _member_names(world: World) -> Iterator[str]:
    with ReplicaSet(world.server, members=1) as running:
        running.inject(_OtherNames())
        yield running.uri


@contextlib.contextmanager
def _user(world: World, *, password: str, roles: list[Any], database: str = "") -> Iterator[str]:
    with pymongo.MongoClient[dict[str, Any]](world.locked.uri) as root:
        root.admin.command("createUser", "c4nary@user", pwd=PASSWORD, roles=roles)
        try:
            yield world.as_user("c4nary@user", password, database)
        finally:
            root.admin.command("dropUser", "c4nary@user")


def _with_its_certificate(
    behaviour: Callable[[tuple[str, int], ssl.SSLContext], fake_servers.Behaviour],
    *,
    shown: bool = False,
    trusted: bool = False,
    tls: bool = True,
    newest: str = "TLSv1_3",
) -> Planted:
    """``shown``: the client has a certificate of an authority that ``trusted`` servers know."""

    @contextlib.contextmanager
    def planted(world: World) -> Iterator[str]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = ssl.TLSVersion[newest]
        world.authority.issue_cert("127.0.0.1").configure_cert(context)
        other, file = trustme.CA(), world.file.with_name("client.pem")
        other.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(file))
        (other if trusted else world.authority).configure_trust(context)
        with Peer(behaviour(world.server, context)) as peer:
            uri = world.tls(peer.uri) if tls else peer.uri
            yield f"{uri}&tlsCertificateKeyFile={quote(str(file), safe='')}" if shown else uri

    return planted


def _requires_a_trusted_one(
    server: tuple[str, int], context: ssl.SSLContext
) -> fake_servers.Behaviour:
    context.verify_mode = ssl.CERT_REQUIRED
    return with_tls(server, context)


def _refuses(alert: bytes) -> Planted:
    """Of TLS: what the client offers."""

    def meet(_: Peer, connection: socket.socket) -> None:
        connection.recv(fake_servers.CHUNK)
        connection.sendall(b"\x15\x03\x03\0\x02" + alert)

    return behind(lambda _: meet)


@contextlib.contextmanager
def _overloaded(world: World) -> Iterator[str]:
    with ReplicaSet(world.server, members=1) as running:
        running.inject(Overload(times=1_000_000))
        yield running.uri


READ_ELSEWHERE = [{"role": "read", "db": "elsewhere"}]

MISCONFIGURATIONS: dict[str, tuple[Symptom, Planted]] = {
    "wrong port": (
        Symptom.NOT_MONGODB, behind(lambda _: fake_servers.answers_in_plain_text, tls=False),
    ),
    "refused": (Symptom.REFUSED, lambda _: contextlib.nullcontext(NOBODY)),
    "black hole": (Symptom.BLACK_HOLE, _black_hole),
    "unknown host": (
        Symptom.UNKNOWN_HOST, lambda _: contextlib.nullcontext("mongodb://mongo.invalid"),
    ),
    "certificate of an unknown authority": (
        Symptom.UNKNOWN_AUTHORITY,
        behind(lambda world: world.behind(trustme.CA().issue_cert("127.0.0.1"))),
    ),
    "certificate for another host": (
        Symptom.WRONG_HOST_NAME,
        behind(lambda world: world.behind(world.authority.issue_cert("db.example.org"))),
    ),
    "expired certificate": (
        Symptom.EXPIRED,
        certificate(not_before=LONG_AGO - dt.timedelta(days=9), not_after=LONG_AGO),
    ),
    "TLS to plain": (Symptom.PLAIN_PORT, _tls_to_plain),
    "wrong set name": (Symptom.SET_NAME, _set_name),
    "unreachable member names": (Symptom.MEMBER_NAMES, _member_names),
    "wrong password": (
        Symptom.PASSWORD,
        lambda world: _user(world, password=f"{PASSWORD}2", roles=["root"]),
    ),
    "missing rights": (
        Symptom.MISSING_RIGHTS,
        lambda world: _user(world, password=PASSWORD, roles=READ_ELSEWHERE, database="shop"),
    ),
    # Beyond the twelve.
    "plain to TLS": (
        Symptom.TLS_PORT,
        behind(lambda world: world.behind(world.authority.issue_cert("127.0.0.1")), tls=False),
    ),
    "silent": (Symptom.SILENT, behind(lambda _: fake_servers.is_silent, tls=False)),
    "silent at TLS": (Symptom.NO_TLS_ANSWER, behind(lambda _: fake_servers.is_silent)),
    "hangs up": (Symptom.HANGS_UP, behind(lambda _: fake_servers.hangs_up, tls=False)),
    "plain text to TLS": (
        Symptom.PLAIN_PORT, behind(lambda _: fake_servers.answers_in_plain_text),
    ),
    "refused TLS version": (Symptom.TLS_VERSION, _refuses(b"\x02\x46")),
    "refused ciphers": (Symptom.TLS_VERSION, _refuses(b"\x02\x28")),
    "TLS to a mongod without": (
        Symptom.PLAIN_PORT, behind(lambda world: fake_servers.without_tls(world.server)),
    ),
    "plain to a mongod with TLS": (
        Symptom.TLS_PORT, _with_its_certificate(fake_servers.requires_tls, tls=False),
    ),
    "refused client certificate": (
        Symptom.CLIENT_CERTIFICATE, _with_its_certificate(_requires_a_trusted_one, shown=True),
    ),
    "refused client certificate, TLS 1.2": (
        Symptom.CLIENT_CERTIFICATE,
        _with_its_certificate(_requires_a_trusted_one, shown=True, newest="TLSv1_2"),
    ),
    "client certificate refused by a mongod": (
        Symptom.CLIENT_CERTIFICATE,
        _with_its_certificate(fake_servers.refuses_certificates, shown=True, trusted=True),
    ),
    "not on the access list": (Symptom.ACCESS_LIST, _refuses(b"\x02\x50")),
    "access denied": (Symptom.ACCESS_LIST, _refuses(b"\x02\x31")),
    "wrong SNI": (Symptom.WRONG_SNI, _refuses(b"\x02\x70")),
    "closed after TLS": (
        Symptom.CLOSES_AFTER_TLS, _with_its_certificate(fake_servers.closes_after_tls),
    ),
    "missing unix socket": (
        Symptom.UNIX_SOCKET, lambda _: contextlib.nullcontext("mongodb://%2Ftmp%2Fnone.sock"),
    ),
    "overloaded": (Symptom.OVERLOADED, _overloaded),
    "no client certificate": (Symptom.CLIENT_CERTIFICATE, _requires_one("TLSv1_3")),
    "no client certificate, TLS 1.2": (Symptom.CLIENT_CERTIFICATE, _requires_one("TLSv1_2")),
    "no user": (
        Symptom.LOGIN_REQUIRED, lambda world: contextlib.nullcontext(
            "mongodb://{}:{}".format(*world.locked.address)
        ),
    ),
}  # fmt: skip
