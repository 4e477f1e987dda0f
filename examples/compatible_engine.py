"""Write to a server that has no retryable writes and throttles, such as Azure Cosmos DB.

MONGODB_URI='mongodb://localhost:27017/?retryWrites=false' python compatible_engine.py
"""

from __future__ import annotations

import os
from typing import Any

from pymongo import MongoClient

from pymongo_resilience import Policy, instrument
from pymongo_resilience.errors import RetryReason
from pymongo_resilience.events import Event, RetryScheduled


class Throttling:
    """Prints why writes are late."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, RetryScheduled) and event.reason is RetryReason.THROTTLED:
            print(f"{event.operation} was throttled, waiting")


def main() -> None:
    # All writes to this database may be applied twice without harm: each document has an _id of
    # the application's own, and each update sets values.
    instrument(
        timeout_ms=20_000,
        policies={"shop.*": Policy(idempotent=True)},
        listeners=[Throttling()],
    )
    client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGODB_URI"], retryWrites=False)
    orders = client.shop.orders
    orders.insert_many([{"_id": f"order-{number}", "total": number} for number in range(5)])
    orders.update_one({"_id": "order-3"}, {"$set": {"paid": True}})
    orders.delete_one({"_id": "order-0"})
    print(list(orders.find(sort=[("_id", 1)])))
    client.close()


if __name__ == "__main__":
    main()
