"""Count the orders of each customer, exactly once each, whatever happens to this process.

MONGODB_URI=mongodb://localhost:27017 python change_consumer.py
"""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

from pymongo import MongoClient

from pymongo_resilience import instrument
from pymongo_resilience.streams import ChangeConsumer, CollectionTokens, HistoryLostError


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    instrument(timeout_ms=20_000)
    client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGODB_URI"])
    shop = client.shop

    def count(change: Any, session: Any) -> None:
        """Its write and the position in the stream are committed together."""
        customer = {"_id": change["fullDocument"]["customer"]}
        shop.customers.update_one(customer, {"$inc": {"orders": 1}}, upsert=True, session=session)

    consumer = ChangeConsumer(
        shop.orders,
        count,
        name="orders-by-customer",
        tokens=CollectionTokens(shop.tokens, "orders-by-customer"),
        pipeline=[{"$match": {"operationType": "insert"}}],
        delivery="exactly_once",
        handler_retries=5,
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    try:
        consumer.run()
    except HistoryLostError as lost:
        # Count all orders anew from the collection, then forget the token.
        raise SystemExit(f"some orders were not counted: {lost}") from None
    finally:
        client.close()


if __name__ == "__main__":
    main()
