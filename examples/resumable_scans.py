"""One rule for a database: scans that can be resumed are, everything else runs unchanged.

MONGODB_URI=mongodb://localhost:27017 python resumable_scans.py
"""

from __future__ import annotations

import logging
import os
from typing import Any

from pymongo import MongoClient

from pymongo_resilience import Policy, instrument


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    # The timeout limits each batch, so a scan may take as long as it needs.
    instrument(timeout_ms=20_000, policies={"shop.*": Policy(resumable="if_possible")})
    with MongoClient[dict[str, Any]](os.environ["MONGODB_URI"]) as client:
        orders = client.shop.orders
        orders.insert_many([{"_id": n, "total": n % 7} for n in range(500)])

        exported = [order["_id"] for order in orders.find({}, batch_size=100)]
        print("exported:", len(exported), "in order:", exported == sorted(exported))

        # An object mapper may send an aggregate instead.
        matched = orders.aggregate([{"$match": {"total": 3}}], batchSize=20)
        print("matched:", sum(1 for _ in matched))

        # In any other order, a scan cannot be resumed. It runs as without the rule.
        largest = orders.find({}, sort={"total": -1}, batch_size=100)
        print("largest:", next(largest)["total"])
        largest.close()


if __name__ == "__main__":
    main()
