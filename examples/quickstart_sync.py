"""Safe retries and a deadline for every client of the process; the rest is ordinary pymongo.

MONGODB_URI=mongodb://localhost:27017 python quickstart_sync.py
"""

from __future__ import annotations

import logging
import os

from pymongo import MongoClient

from pymongo_resilience import OperationTimeoutError, instrument, override


def main() -> None:
    logging.basicConfig(level=logging.INFO)  # every retry is a line of its own
    instrument(timeout_ms=20_000)

    with MongoClient(os.environ["MONGODB_URI"]) as client:
        orders = client.shop.orders
        orders.drop()

        # A reply may get lost: the server recognises the repetition, so this is applied once.
        orders.insert_one({"_id": 1, "paid": False, "visits": 0})
        orders.update_one({"_id": 1}, {"$inc": {"visits": 1}})

        # No server can recognise a repeated update_many. This one may be repeated all the same:
        # setting a field twice does no harm, and you know that.
        with override(idempotent=True):
            orders.update_many({"paid": False}, {"$set": {"paid": True}})

        try:
            print(orders.find_one({"_id": 1}))
        except OperationTimeoutError as error:  # it is pymongo's own class as well
            print(f"gave up after {error.attempts} attempts and {error.elapsed_s:.1f} s")
            raise


if __name__ == "__main__":
    main()
