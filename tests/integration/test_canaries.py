"""The search for canaries finds what it is for: without this, finding none would prove nothing."""

from __future__ import annotations

import base64
import json
import pprint
import urllib.parse
from typing import Any

import bson
import pytest
from bson import json_util
from pymongo_resilience_instrumentation.tools.testbed.server import EmbeddedServer
from support.canaries import FORMS, MARK, PASSWORD, USER, document, leaks
from support.canary_outputs import instrumented
from support.clients import Side, fail_command

DOCUMENT = document("a control")
BSON = bson.encode(DOCUMENT)
WRITTEN: dict[str, str] = {
    "str": str(DOCUMENT),
    "repr of a repr": repr(repr(DOCUMENT)),
    "pretty": pprint.pformat(DOCUMENT, width=40),
    "values": " ".join(map(str, DOCUMENT.values())),
    "relaxed JSON": json_util.dumps(DOCUMENT, json_options=json_util.RELAXED_JSON_OPTIONS),
    "canonical JSON": json_util.dumps(DOCUMENT, json_options=json_util.CANONICAL_JSON_OPTIONS),
    "escaped JSON": json.dumps(json.dumps(json_util.dumps(DOCUMENT, indent=2))),
    "upper case": json_util.dumps(DOCUMENT).upper(),
    "BSON": repr(BSON),
    "BSON as integers": str(list(BSON)),
    "BSON in hex": BSON.hex(" "),
    **{
        f"BSON in base64 +{n}": base64.urlsafe_b64encode(bytes(n) + BSON).decode() for n in range(3)
    },
}
"""One document as others write it, not as the search's own table does."""


def found(written: str) -> set[str]:
    return {line.split(": ")[1].split(" as ")[0] for line in leaks("control", [written])}


@pytest.mark.parametrize("guise", WRITTEN)
def test_every_canary_of_a_document_is_found(guise: str) -> None:
    assert found(WRITTEN[guise]) == set(FORMS)


@pytest.mark.parametrize(
    "written",
    [
        PASSWORD,
        repr(USER),
        urllib.parse.quote(PASSWORD, safe=""),
        json.dumps(PASSWORD),
        base64.b64encode(f"n,,n={USER},r=nonce".encode()).decode(),
    ],
)
def test_credentials_are_found(written: str) -> None:
    assert found(written) == {"text"}


def test_what_is_no_canary_is_not_found() -> None:
    assert leaks("control", [json_util.dumps({"_id": bson.ObjectId(), "name": "canary"})]) == []


def test_a_canary_in_a_name_is_found_in_every_channel_of_ours(
    side: Side, server: EmbeddedServer, database: str, control: Any
) -> None:
    """Names are shown, so this is what a leak of the library itself would look like."""
    with instrumented() as outputs:
        coll = side.do(side.client, server.uri)[database][f"{MARK}.coll"]
        with fail_command(control, "find", errorCode=6, times=1):
            side.do(coll.find_one)
    channels = outputs.channels()
    leaking = {name for name, texts in channels.items() if leaks(name, texts)}
    assert leaking == {"spans", "metrics", "log", "reprs"}
