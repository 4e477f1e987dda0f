"""Does an order arrive once, whatever the network does? Needs the extra ``testbed`` and pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import shop
from pymongo import MongoClient

from pymongo_resilience import instrument, uninstrument
from pymongo_resilience.testbed import CutAfter, CutBefore, Election

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pymongo_resilience.testbed import ReplicaSet


@pytest.fixture
def orders(mongo_replica_set: ReplicaSet, mongo_database: str) -> Iterator[Any]:
    instrument(timeout_ms=20_000)
    with MongoClient[dict[str, Any]](mongo_replica_set.uri) as client:
        yield client[mongo_database].orders
    uninstrument()


@pytest.mark.mongo_faults(CutAfter("insert", times=2))  # executed, and the replies are lost
def test_an_order_is_placed_once(orders: Any) -> None:
    shop.place_order(orders, 1)
    assert orders.count_documents({"number": 1}) == 1


@pytest.mark.mongo_faults(CutAfter("update"), CutBefore("update"), seed=7)
def test_an_order_is_paid_once(orders: Any) -> None:
    orders.insert_one({"number": 1, "cents": 0})
    shop.pay(orders, 1, 500)
    assert orders.find_one({"number": 1})["cents"] == 500


def test_orders_outlive_an_election(orders: Any, mongo_faults: ReplicaSet) -> None:
    shop.place_order(orders, 1)
    mongo_faults.inject(Election(gap=0.5))
    shop.place_order(orders, 2)
    assert orders.count_documents({}) == 2


@pytest.mark.mongo_faults("flapping-member")
def test_orders_outlive_a_drill(orders: Any) -> None:
    for number in range(20):
        shop.place_order(orders, number)
    assert orders.count_documents({}) == 20
