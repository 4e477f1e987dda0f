"""MongoEngine's documents use the sync client that it is told to connect."""

from __future__ import annotations

from typing import Any

from mongoengine import Document, IntField, connect, disconnect
from trial import FAILURES, Trial, deadline_missed, tried

from pymongo_resilience.testbed import BlackHole, CutAfter, CutBefore

trial = Trial()


class Order(Document):  # type: ignore[misc]  # untyped upstream
    n = IntField()


def main(proxy: Any) -> None:
    connect("shop", host=proxy.uri, uuidRepresentation="standard")
    proxy.inject(CutBefore("insert", times=FAILURES))
    order = Order(n=0).save()
    trial.check_operation("insert shop.order", commands=1 + FAILURES)

    proxy.inject(CutAfter("update", times=FAILURES))
    assert Order.objects(id=order.id).update_one(inc__n=1) == 1
    trial.check_operation("update shop.order", commands=1 + FAILURES)
    order.reload()
    assert order.n == 1

    Order.objects.insert([Order(n=n) for n in range(2, 6)])
    assert [each.n for each in Order.objects.order_by("n").batch_size(3)] == [1, 2, 3, 4, 5]
    trial.check_operation("getMore shop.order")
    trial.check_pools(1)

    proxy.inject(BlackHole(60))
    with deadline_missed():
        Order.objects.first()
    proxy.clear()
    disconnect()
    trial.check_pools(0)


with trial.deployment() as deployment:
    main(deployment)
tried("mongoengine")
