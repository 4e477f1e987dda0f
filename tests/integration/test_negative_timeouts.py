"""A negative timeout is one error wherever it is given, which names what and what is allowed."""

from __future__ import annotations

import warnings
from typing import Any

import pymongo
import pytest
from pymongo.errors import ConfigurationError as DriversError
from support.clients import Side
from support.telemetry import Instrument

from pymongo_resilience.testing import set_active

pytestmark = pytest.mark.oldest

NOWHERE = "mongodb://127.0.0.1:1/"


@pytest.mark.parametrize(
    "uri",
    [
        NOWHERE + "?timeoutMS=-1",
        NOWHERE + "?retryWrites=true&TIMEOUTms=-0.5&w=1",
        NOWHERE + "?w=1;timeoutMS=-1",
        NOWHERE + "?timeoutMS=%2D1",
        NOWHERE + "?timeoutMS=-inf",
        ["127.0.0.1:1", NOWHERE + "?timeoutMS=-1"],
    ],
    ids=str,
)
@pytest.mark.parametrize("keyword", [False, True])
def test_in_a_uri(keyword: bool, uri: Any, side: Side, instrument: Instrument) -> None:
    instrument()
    cls: Any = pymongo.MongoClient if side.runner is None else pymongo.AsyncMongoClient
    with pytest.raises(DriversError, match=r"(?i)timeoutMS=.* in the URI: expected 0 .* or more"):
        cls(host=uri) if keyword else cls(uri)


@pytest.mark.parametrize(
    "host",
    [
        *(f"{NOWHERE}?timeoutMS={value}" for value in ("0", "1.5", "-0", "abc", "", "nan")),
        5, [5], None, b"mongodb://",
    ],
)  # fmt: skip
def test_any_other_host_means_what_it_does_to_pymongo(host: Any, instrument: Instrument) -> None:
    def outcome() -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with pymongo.MongoClient(host, connect=False) as client:
                    servers = {*client.topology_description.server_descriptions()}
                    return client.options.timeout, servers, [str(each.message) for each in caught]
            except Exception as error:  # noqa: BLE001 - compared, whatever it is
                return type(error), str(error)

    plain = outcome()
    instrument()
    assert outcome() == plain


def test_as_a_keyword_it_is_pymongos_error(side: Side, instrument: Instrument) -> None:
    instrument()
    with pytest.raises(ValueError, match="timeoutMS must be greater than"):
        side.client(NOWHERE, timeoutMS=-1)


def test_while_it_is_switched_off_pymongo_decides(instrument: Instrument) -> None:
    instrument()
    with set_active(False), pytest.warns(UserWarning, match="timeoutms must be"):
        pymongo.MongoClient(NOWHERE + "?timeoutMS=-1", connect=False).close()
