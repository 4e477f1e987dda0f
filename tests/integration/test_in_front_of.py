"""Proxies before a deployment that exists: what passes, what is rewritten, what is never shown."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trustme
from pymongo import MongoClient, uri_parser
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo_resilience_instrumentation.tools import cli
from support.clients import wait_until
from support.dns_server import resolving
from support.fake_servers import Peer, with_tls

from pymongo_resilience.testbed import (
    BlackHole,
    CutAfter,
    CutBefore,
    Election,
    EmbeddedServer,
    InFrontOf,
    NotPrimary,
    ReplicaSet,
    TestbedError,
)

PASSWORD = "p@ss/word"


@pytest.fixture
def proxies(replica_set: ReplicaSet) -> Iterator[InFrontOf]:
    with InFrontOf(replica_set.uri) as running:
        yield running


def nodes(client: MongoClient[Any]) -> set[Any]:
    return set(client.topology_description.server_descriptions())


def test_clients_know_the_proxies_alone(
    proxies: InFrontOf, replica_set: ReplicaSet, database: str
) -> None:
    with MongoClient[Any](proxies.uri) as client:
        client[database].orders.insert_one({"_id": 1})
        wait_until(lambda: len(client.secondaries) == 2)
        own = {each.address for each in proxies.members}
        assert nodes(client) == own
        assert client.primary in own
        # An election behind them reaches the client, and the next fault finds the new primary.
        before = client.primary
        replica_set.inject(Election(gap=0.2)).result(10)
        wait_until(lambda: client.primary not in {None, before})
        proxies.inject(CutBefore("insert", times=1), on="primary")
        client[database].orders.insert_one({"_id": 2})
        assert proxies.injected()["CutBefore"] == 1


def test_faults_strike_what_carries_them(proxies: InFrontOf, database: str) -> None:
    with MongoClient[Any](proxies.uri, retryWrites=False) as client:
        orders = client[database].orders
        proxies.inject(CutAfter("insert"))
        with pytest.raises(AutoReconnect):
            orders.insert_one({"_id": 1})
        assert orders.find_one() == {"_id": 1}
        proxies.inject(NotPrimary("insert"))
        with pytest.raises(AutoReconnect):
            orders.insert_one({"_id": 2})
        orders.insert_one({"_id": 2})
        done = proxies.inject(BlackHole(0.3), on="primary")
        assert orders.count_documents({}) == 2
        done.result(10)
        proxies.clear(strict=True)


@pytest.mark.parametrize("fault", [Election()])
def test_it_cannot_elect(proxies: InFrontOf, fault: Any) -> None:
    with pytest.raises(ValueError, match=r"needs a ReplicaSet.* InFrontOf"):
        proxies.inject(fault)


def test_clients_log_in_through_it_and_nothing_shows_the_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with EmbeddedServer(user="root", password=PASSWORD) as server:
        with InFrontOf(f"{server.uri}?authSource=admin") as proxies:
            assert "root" not in proxies.uri + repr(proxies) + proxies.server_description
            assert "authSource=admin" in proxies.uri
            with MongoClient[Any](proxies.uri, username="root", password=PASSWORD) as client:
                client.shop.orders.insert_one({"_id": 1})
            with MongoClient[Any](proxies.uri) as client, pytest.raises(OperationFailure):
                client.shop.orders.find_one()
    escaped = quote(PASSWORD, safe="")
    for uri in ("mongodb://root:{}@127.0.0.1:1/", "mongodb://root:p@ss/word@h", "mongo://{}"):
        assert cli.main(["testbed", "--in-front-of", uri.format(escaped)]) != 0
        shown = capsys.readouterr()
        assert shown.err.startswith(f"{cli.PROGRAM}: error: ")
        assert "ss/word" not in shown.err
        assert "root" not in shown.err
        assert escaped not in shown.err


def test_it_speaks_tls_to_the_deployment(server: EmbeddedServer, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ReplicaSet(server.address, members=1) as behind:
        with Peer(with_tls(behind.members[0].address, context)) as peer:
            (_, port) = uri_parser.parse_uri(peer.uri)["nodelist"][0]
            trusting = f"mongodb://127.0.0.1:{port}/?tls=true&tlsCAFile={tmp_path}/ca.pem"
            with pytest.raises(TestbedError, match="no member of the deployment answers"):
                InFrontOf(f"mongodb://127.0.0.1:{port}/?tls=true").start()
            with Standing(trusting) as proxies, MongoClient[Any](proxies.uri) as client:
                assert client.admin.command("ping")["ok"] == 1


class Standing(InFrontOf):
    """Before the address alone: the set behind the certificate names others."""

    async def _backends(self) -> Any:
        backends = await super()._backends()
        backends[0].address = self._seeds[0]
        return backends[:1]

    @property
    def _parameters(self) -> str:
        return "?directConnection=true"


def test_the_members_of_a_srv_record_are_found() -> None:
    records = {
        ("_mongodb._tcp.staging.example.test", "SRV"): [
            f"0 5 {port} {name}.example.test." for name, port in (("a", 27017), ("b", 27018))
        ],
        ("staging.example.test", "TXT"): ['"authSource=users&replicaSet=rs9"'],
    }
    with resolving(records):
        proxies = InFrontOf("mongodb+srv://root:x@staging.example.test/?retryWrites=true")
    assert sorted(proxies._seeds) == [("a.example.test", 27017), ("b.example.test", 27018)]
    assert proxies._options["tls"]
    assert proxies._parameters == "?authSource=users"
