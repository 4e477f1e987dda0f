"""A strategy of your own: when to repeat, where repeating is safe at all.

Robots are turned away at the first failure, people get three retries. A strategy may refuse or
delay a retry; it cannot permit one that could apply a write twice. It is not asked after "not
primary", which is repeated whatever it would say.

MONGODB_URI=mongodb://localhost:27017 python custom_strategy.py
"""

from __future__ import annotations

import os

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from pymongo_resilience import instrument, override
from pymongo_resilience.events import Event, RetryDeclined, RetryScheduled
from pymongo_resilience.strategies import Failure, RetryAction, RetryState

RETRIES = 3


class PeopleFirst:
    """One instance serves all threads and tasks: it keeps no state."""

    def retry_after(self, state: RetryState, failure: Failure) -> RetryAction | None:
        # attempts counts the failed ones: it is 1 when the first retry is in question.
        if state.data.get("robot") or state.attempts > RETRIES:
            return None
        return RetryAction(delay=0.02 * state.attempts)


class Printer:
    """Hears every decision, in the thread or task of the operation: it must not block."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, RetryScheduled):
            print(f"{event.operation}: {event.reason}, again in {event.delay:.2f} s")
        elif isinstance(event, RetryDeclined):
            print(f"{event.operation}: {event.reason}, not again: {event.rule}")


def main() -> None:
    instrument(timeout_ms=10_000, strategy=PeopleFirst(), listeners=[Printer()])

    with MongoClient(os.environ["MONGODB_URI"]) as client:
        pages = client.shop.pages
        pages.replace_one({"_id": "home"}, {"title": "Welcome"}, upsert=True)
        for visitor in ("robot", "person"):
            with override(data={"robot": visitor == "robot"}):
                try:
                    print(f"the {visitor} sees", pages.find_one({"_id": "home"}))
                except PyMongoError as error:
                    print(f"the {visitor} is turned away: {type(error).__name__}")


if __name__ == "__main__":
    main()
