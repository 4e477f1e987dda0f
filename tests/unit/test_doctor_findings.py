"""What the doctor makes of members and rights: facts that a real deployment answered with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo_resilience_instrumentation.tools.doctor import Finding, Level, compared_members, login
from pymongo_resilience_instrumentation.tools.doctor.examination import Examination, as_text, decide
from pymongo_resilience_instrumentation.tools.doctor.probe import Probe
from pymongo_resilience_instrumentation.tools.doctor.uri import read

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ["a:1", "b:1", "c:1"]
SET, _ = read("mongodb://a:1,b:1/?replicaSet=rs")
DIRECT, _ = read("mongodb://b:1/?directConnection=true")


def member(name: str, **hello: Any) -> Probe:
    host, _, port = name.partition(":")
    common = {"setName": "rs", "me": name, "hosts": HOSTS, "ok": 1, "maxWireVersion": 21}
    written = {"localTime": NOW, "lastWrite": {"lastWriteDate": NOW}}
    return Probe((host, int(port)), hello={**common, **written, **hello}, round_trips_ms=[1.0])


PRIMARY = member("a:1", isWritablePrimary=True)
ARBITER = member(
    "d:1",
    arbiterOnly=True,
    arbiters=["d:1"],
    lastWrite={"lastWriteDate": datetime.fromtimestamp(0, UTC)},
)


def texts(*probes: Probe) -> list[tuple[Level, str]]:
    assert SET is not None
    return [(each.level, each.text) for each in compared_members.of_set(probes, SET)]


def test_an_arbiter_is_never_behind() -> None:
    assert all("behind" not in text for _, text in texts(PRIMARY, ARBITER))


def test_a_hidden_seed_is_no_member_of_those_that_count() -> None:
    hidden = member("h:1", secondary=True, hidden=True)
    others = [member(name, secondary=True) for name in HOSTS[1:]]
    assert (Level.OK, "3 of 3 members are reachable, primary a:1") in texts(
        PRIMARY, *others, hidden
    )


def test_a_direct_connection_says_nothing_of_the_other_members() -> None:
    assert DIRECT is not None
    assert compared_members.without_primary([member("b:1", secondary=True)], DIRECT) is None


def test_a_recovering_member_is_a_warning() -> None:
    assert SET is not None
    (hello, _) = compared_members.of_probe(member("b:1"), SET, Level.WRONG)
    assert (hello.level, hello.advice) == (Level.WARNING, "check the log of that member")


@pytest.mark.parametrize(
    ("resource", "granted"),
    [
        ({"db": "shop", "collection": ""}, {"read", "write"}),
        ({"db": "shop", "collection": "orders"}, {"some"}),
        ({"db": "other", "collection": ""}, set()),
        ({"anyResource": True}, {"read", "write"}),
    ],
)
def test_a_right_on_one_collection_is_none_on_the_database(
    resource: dict[str, Any], granted: set[str]
) -> None:
    privileges = [{"resource": resource, "actions": ["find", "insert"]}]
    information = {"authenticatedUserPrivileges": privileges}
    assert set(login._granted(information, "shop")) == granted


def test_an_advice_is_printed_once() -> None:
    findings = tuple(Finding("tcp", Level.WRONG, f"no {n}", "check it", f"{n}:1") for n in "abcd")
    text = as_text(Examination(findings, decide(findings, [], None), 0.1))
    assert text.count("check it") == 2, "once among the findings, once as the change"
