"""What engines other than MongoDB answer is read with care, and the doctor recognizes them."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import OperationFailure, WriteError
from pymongo_resilience_instrumentation.driver.attempts import AttemptFacts
from pymongo_resilience_instrumentation.failures import classify, engines as replies
from pymongo_resilience_instrumentation.tools.doctor import Level, engines
from pymongo_resilience_instrumentation.tools.doctor.engines import Engine
from pymongo_resilience_instrumentation.tools.doctor.uri import read
from support.engines import COSMOS_DB, DOCUMENTDB, STANDALONE, throttled_text

from pymongo_resilience.rules.failure import Failure, RetryReason

pytestmark = pytest.mark.oldest


def failure_of(document: dict[str, Any], *, numbered: bool = False) -> Failure:
    attempt = AttemptFacts(True, numbered, None, 0.0)
    error = OperationFailure(str(document.get("errmsg")), document.get("code"), document)
    return classify.failure_of(error, attempt)


@pytest.mark.parametrize("document", [DOCUMENTDB, COSMOS_DB, STANDALONE])
def test_a_refused_number_is_recognized_by_its_text(document: dict[str, Any]) -> None:
    assert failure_of(document, numbered=True).reason is RetryReason.NO_RETRYABLE_WRITES
    assert failure_of(document).reason is RetryReason.UNKNOWN, "there was no number"
    quoted = {**document, "errmsg": f"dup key: {{ a: {document['errmsg']} }}"}
    assert failure_of(quoted, numbered=True).reason is RetryReason.UNKNOWN
    # 301 is DataCorruptionDetected on a mongod.
    other = {"ok": 0, "code": 301, "codeName": "DataCorruptionDetected", "errmsg": "corrupt"}
    assert failure_of(other, numbered=True).reason is RetryReason.UNKNOWN


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (throttled_text(8), 0.008),
        (throttled_text(None), None),
        ("Error=16500, RetryAfterMs=1234", 1.234),
        ("Error=16500, RetryAfterMs=0, Details", 0.0),
        ("RetryAfterMs=-5", None),
        ("RetryAfterMs=nan", None),
        ("RetryAfterMs=99999999999999999999", None),
        ("NoRetryAfterMs=7", None),
        (b"RetryAfterMs=7", None),
        (None, None),
        (7, None),
    ],
)
def test_the_time_is_read_from_the_text(text: Any, seconds: float | None) -> None:
    failure = failure_of({"ok": 0, "code": 16500, "errmsg": text})
    assert failure.reason is RetryReason.THROTTLED
    assert failure.retry_after == seconds


def test_only_throttling_has_a_time() -> None:
    assert failure_of({"ok": 0, "code": 6, "errmsg": "RetryAfterMs=7"}).retry_after is None


def test_an_assertion_of_mongodb_with_the_same_number_is_none() -> None:
    document = {"ok": 0, "code": 16500, "codeName": "Location16500", "errmsg": "x"}
    assert failure_of(document).reason is RetryReason.UNKNOWN
    assert not replies.is_throttled(document)


def test_a_throttled_statement_was_not_rejected_for_certain() -> None:
    document = {"index": 0, "code": 16500, "errmsg": throttled_text(8)}
    error = WriteError(document["errmsg"], 16500, document)
    failure = classify.failure_of(error, AttemptFacts(True, False, None, 0.0))
    assert failure.reason is RetryReason.THROTTLED
    assert failure.executed
    assert failure.retry_after == 0.008


HOSTS = {
    "a.cluster-x.eu-west-1.docdb.amazonaws.com": Engine.AMAZON_DOCUMENTDB,
    "docdb-40-cluster.c1.eu-west-1.docdb.amazonaws.com": Engine.AMAZON_DOCUMENTDB,
    "shop-1.us-east-1.docdb-elastic.amazonaws.com": Engine.AMAZON_DOCUMENTDB,
    "shop.mongo.cosmos.azure.com": Engine.COSMOS_DB,
    "shop.documents.azure.com": Engine.COSMOS_DB,
    "shop.mongocluster.cosmos.azure.com": Engine.AZURE_DOCUMENTDB,
    "shop.global.mongocluster.cosmos.azure.com": Engine.AZURE_DOCUMENTDB,
    "SHOP.MONGO.COSMOS.AZURE.COM": Engine.COSMOS_DB,
    "cluster0.ab1cd.mongodb.net": None,
    "docdb.amazonaws.com.example.org": None,
    "cosmos.azure.com": None,
    "localhost": None,
    "10.0.0.1": None,
}


@pytest.mark.parametrize("host", HOSTS)
def test_an_engine_is_recognized_by_its_hosts(host: str) -> None:
    engine = HOSTS[host]
    assert engines.of_hosts(["db1", host]) is engine
    for scheme, port in (("mongodb", ":27017"), ("mongodb+srv", "")):
        if scheme == "mongodb" or host.count(".") > 1:
            target, _ = read(f"{scheme}://{host}{port}/")
            assert target is not None
            assert engines.of_target(target) is engine


@pytest.mark.parametrize(
    ("hello", "build_info", "engine"),
    [
        ({}, {"ferretdb": {"version": "v2.7.0"}, "version": "7.0.77"}, Engine.FERRETDB),
        ({"internal": {"documentdb_versions": ["0.117.0"], "kind": ""}}, {}, Engine.DOCUMENTDB),
        ({"internal": {"cosmos_versions": ["1.0"]}}, None, Engine.DOCUMENTDB),
        ({"internal": {"kind": "azuredocumentdb"}}, None, Engine.AZURE_DOCUMENTDB),
        ({"internal": {}}, {"version": "8.0.0"}, None),
        ({"internal": 7}, None, None),
        ({}, {"version": "8.0.0", "modules": []}, None),
        (None, None, None),
    ],
)
def test_an_engine_is_recognized_by_its_replies(
    hello: Any, build_info: Any, engine: Engine | None
) -> None:
    assert engines.of_replies(hello, build_info) is engine


@pytest.mark.parametrize("engine", Engine)
def test_each_engine_is_told_what_to_do_and_never_to_switch_retry_writes_on(engine: Engine) -> None:
    hosts = {value: key for key, value in HOSTS.items() if value is not None}
    host = hosts.get(engine, "db1")
    for retry_writes in ("true", "false"):
        target, written = read(f"mongodb://{host}:27017/?retryWrites={retry_writes}")
        assert target is not None
        found = list(engines.findings(engine, target))
        assert engine.value in found[0].text
        assert "override(idempotent=True)" in found[0].text
        warned = [each for each in found if each.level is Level.WARNING]
        is_wrong = retry_writes == "true" and engine in engines.NEED_RETRY_WRITES_OFF
        assert bool(warned) is is_wrong
        if engine in hosts:
            assert "retryWrites" not in " ".join(each.advice for each in written)


def test_of_a_mongodb_server_nothing_is_said() -> None:
    target, written = read("mongodb://db1:27017/?retryWrites=false")
    assert target is not None
    assert list(engines.findings(None, target)) == []
    (warning,) = written
    assert "remove retryWrites=false, unless" in warning.advice
