"""Run commands that may run twice, so that one stale connection does not fail them.

MONGODB_URI=mongodb://localhost:27017 python declared_commands.py
"""

from __future__ import annotations

import logging
import os
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import bind, instrument, override

log = logging.getLogger("declared_commands")


def answers(client: MongoClient[dict[str, Any]]) -> bool:
    """A round trip for a health check, with a deadline shorter than that of the probe."""
    try:
        with override(idempotent=True, timeout_ms=800):
            client.admin.command("ping")
    except PyMongoError as error:
        log.warning("the database does not answer: %s", error)
        return False
    return True


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    instrument(timeout_ms=20_000)
    with MongoClient[dict[str, Any]](os.environ["MONGODB_URI"]) as client:
        client.shop.orders.insert_many([{"paid": n % 2 == 0} for n in range(10)])
        print("answers:", answers(client))

        # Reports and maintenance: all commands of this database object may run twice.
        shop = bind(client.shop, idempotent=True)
        print("orders:", shop.command("collStats", "orders")["count"])
        shop.orders.aggregate([{"$match": {"paid": True}}, {"$out": "paid_orders"}])
        print("paid orders:", client.shop.paid_orders.count_documents({}))


if __name__ == "__main__":
    main()
