"""The names of a collection, and its client: asked for by every operation.

Each property of pymongo's on the way takes as long as ten attributes, so we take those behind them,
where they are as they are known to be.
"""

from __future__ import annotations

from operator import attrgetter

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.synchronous.collection import Collection
from pymongo.synchronous.database import Database


def _behind(name: str, *classes: type) -> str:
    private = f"_{name}"
    # Not everything has code: somebody may have put something else in the constructor's place.
    codes = [getattr(cls.__init__, "__code__", None) for cls in classes]  # type: ignore[misc]  # only looked at
    known = all(private in getattr(code, "co_names", ()) for code in codes)
    return private if known else name


_DATABASE = _behind("database", Collection, AsyncCollection)

client_of_collection = attrgetter(f"{_DATABASE}.{_behind('client', Database, AsyncDatabase)}")
client_of_database = attrgetter(_behind("client", Database, AsyncDatabase))
names_of_collection = attrgetter(
    f"{_DATABASE}.{_behind('name', Database, AsyncDatabase)}",
    _behind("name", Collection, AsyncCollection),
)
"""The database's and its own."""
