"""Attributes behind pymongo's properties: taken where they are, and else the properties."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.driver.clients import _behind

pytestmark = pytest.mark.oldest


class Known:
    def __init__(self) -> None:
        self._database = self._name = "behind"


class Derived(Known):
    """Its constructor is its base's."""


class Renamed:
    def __init__(self) -> None:
        self._another = "behind"


class Replaced:
    __init__ = functools.partialmethod(lambda _: None)


@pytest.mark.parametrize(
    ("classes", "found"),
    [
        ((Known,), "_database"),
        ((Known, Derived), "_database"),
        ((Known, Renamed), "database"),
        ((Replaced,), "database"),
        ((object,), "database"),
    ],
)
def test_what_is_not_as_known_is_asked_of_the_property(
    classes: tuple[type, ...], found: str
) -> None:
    assert _behind("database", *classes) == found


@pytest.mark.parametrize("cls", [MongoClient, AsyncMongoClient])
def test_they_are_what_the_properties_say(cls: Any) -> None:
    client = cls(connect=False)
    coll = client.shop.orders
    assert driver.clients.client_of_collection(coll) is client
    assert driver.clients.client_of_database(client.shop) is client
    assert driver.clients.names_of_collection(coll) == ("shop", "orders")
