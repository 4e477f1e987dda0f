"""Token stores: documents of a collection, and the protocol for an application's own store."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, NoReturn, Protocol

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.synchronous.client_session import ClientSession
from pymongo.synchronous.collection import Collection
from pymongo.write_concern import WriteConcern

from pymongo_resilience.stream_rules import ForeignTokenError, OvertakenError, Token

MAJORITY: dict[str, Any] = {
    "read_concern": ReadConcern("majority"),
    "read_preference": ReadPreference.PRIMARY,
    "write_concern": WriteConcern("majority"),
}
"""If a failover rolled a token back, changes would be handled again."""


class Tokens(Protocol):
    """Stores the resume token of one stream, which is a document of strings and bytes."""

    def load(self) -> Token | Awaitable[Token | None] | None:
        """Return the token that was stored last, or None."""

    def save(self, token: Token, /) -> Awaitable[None] | None:
        """Store a token, durably."""


class _Stored:
    """One document of a collection, with the fields ``token``, ``of`` and ``at``.

    ``of`` is what the stream watches, such as ``"shop.orders"``. It is stored because a server
    accepts a token from the end of a batch for any stream.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError("the name of a stream must be a nonempty string")
        self.name = name
        self._of: str | None = None

    def belong_to(self, watched: str) -> None:
        """Set what the stream watches, such as ``"shop.orders"``. The consumer calls this."""
        self._of = watched

    def _token(self, document: Mapping[str, Any] | None) -> Token | None:
        if document is None:
            return None
        of = document.get("of")
        if None not in (of, self._of) and of != self._of:
            raise ForeignTokenError(
                f"{self.name}: the stored token belongs to a stream of {of}, not of {self._of}. "
                "Give each stream its own name. If you can do without the changes after that "
                "token, remove it with tokens.forget()"
            )
        token: Token = document["token"]
        return token

    def _filter(self, before: Token | None) -> dict[str, Any]:
        return {"_id": self.name} if before is None else {"_id": self.name, "token": before}

    def _change(self, token: Token) -> dict[str, Any]:
        return {"$set": {"token": token, "of": self._of}, "$currentDate": {"at": True}}

    def _overtaken(self) -> NoReturn:
        raise OvertakenError(
            f"{self.name}: another consumer with this name has stored a token since this one "
            "last did. Run one at a time, or give each its own name"
        )


class CollectionTokens(_Stored):
    """Stores the token in a document whose ``_id`` is the stream's name. Thread-safe.

    Args:
        collection: A Collection. It is created when the first token is stored.
        name: Name of the stream. No other consumer may use the same one.
    """

    def __init__(self, collection: Collection[Any], name: str) -> None:
        super().__init__(name)
        if not isinstance(collection, Collection):
            raise TypeError("CollectionTokens takes a Collection; see AsyncCollectionTokens")
        self.collection = collection.with_options(**MAJORITY)

    def load(self) -> Token | None:
        """Return the token that was stored last, or None."""
        return self._token(self.collection.find_one({"_id": self.name}))

    def save(self, token: Token, /) -> None:
        """Store a token."""
        self.collection.update_one({"_id": self.name}, self._change(token), upsert=True)

    def replace(
        self, token: Token, before: Token | None, session: ClientSession | None = None
    ) -> None:
        """Replace the token ``before`` with ``token``.

        Raises:
            OvertakenError: The stored token is not ``before``.
        """
        target = self.collection if session is None else _in_transaction(self.collection)
        try:
            done = target.update_one(
                self._filter(before), self._change(token), upsert=before is None, session=session
            )
        except DuplicateKeyError:
            # Another consumer has inserted the document in the meantime.
            self._overtaken()
        # If there was a token before, it must have matched. If there was none, nothing may have
        # matched, and the token was inserted.
        if (done.matched_count == 0) is not (before is None):
            self._overtaken()

    def forget(self) -> None:
        """Remove the token. The next ``run()`` begins with the changes from then on."""
        self.collection.delete_one({"_id": self.name})


class AsyncCollectionTokens(_Stored):
    """As ``CollectionTokens``, for an AsyncCollection. Task-safe."""

    def __init__(self, collection: AsyncCollection[Any], name: str) -> None:
        super().__init__(name)
        if not isinstance(collection, AsyncCollection):
            raise TypeError("AsyncCollectionTokens takes an AsyncCollection")
        self.collection = collection.with_options(**MAJORITY)

    async def load(self) -> Token | None:
        """Return the token that was stored last, or None."""
        return self._token(await self.collection.find_one({"_id": self.name}))

    async def save(self, token: Token, /) -> None:
        """Store a token."""
        await self.collection.update_one({"_id": self.name}, self._change(token), upsert=True)

    async def replace(
        self, token: Token, before: Token | None, session: AsyncClientSession | None = None
    ) -> None:
        """Replace the token ``before`` with ``token``.

        Raises:
            OvertakenError: The stored token is not ``before``.
        """
        target = self.collection if session is None else _in_transaction(self.collection)
        try:
            done = await target.update_one(
                self._filter(before), self._change(token), upsert=before is None, session=session
            )
        except DuplicateKeyError:
            # Another consumer has inserted the document in the meantime.
            self._overtaken()
        # If there was a token before, it must have matched. If there was none, nothing may have
        # matched, and the token was inserted.
        if (done.matched_count == 0) is not (before is None):
            self._overtaken()

    async def forget(self) -> None:
        """Remove the token. The next ``run()`` begins with the changes from then on."""
        await self.collection.delete_one({"_id": self.name})


def _in_transaction(collection: Any) -> Any:
    """Return the collection without concerns, because only the transaction may have them."""
    return collection.with_options(read_concern=ReadConcern(), write_concern=WriteConcern())
