"""Inserts that find their own documents: the reply of an earlier attempt was lost.

Without a transaction number the server does not recognize the retry, and answers with a duplicate
key. If the stored document is byte for byte the one that was sent, the insert has succeeded; what
else may be the case, the error leaves to the application. Nothing is read unless a retry fails so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple

from bson import encode
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from pymongo.errors import DuplicateKeyError, PyMongoError

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience.rules.failure import Stage
from pymongo_resilience_instrumentation import driver

if TYPE_CHECKING:
    from bson.codec_options import CodecOptions

    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience_instrumentation.call import AnyClient, AnySession
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.protocols import (
        AnyCollection,
        BulkContext,
        Connection,
        Document,
    )

    from .retry_loop import RetryLoop

DUPLICATE_KEY = 11000
Reply = Mapping[str, Any]


class Search(NamedTuple):
    """Looks for documents that were sent. Immutable."""

    database: str
    command: dict[str, Any]
    sent: list[bytes]

    def run(self, connection: Connection, session: AnySession | None, client: AnyClient) -> Any:
        """Ask the server that reported the duplicates; awaitable in async clients."""
        return connection.command(
            self.database,
            self.command,
            codec_options=DEFAULT_RAW_BSON_OPTIONS,
            session=session,
            client=client,
        )

    def found(self, reply: Reply) -> list[bool]:
        """For each document, whether it is stored as it was sent."""
        stored = {document.raw for document in reply["cursor"]["firstBatch"]}
        return [each in stored for each in self.sent]


def search_for(
    database: str, collection: str, documents: Sequence[Document], codec: CodecOptions[Any]
) -> Search:
    sent = [encode(each, codec_options=codec) for each in documents]
    ids = [RawBSONDocument(each)["_id"] for each in sent]
    command = {
        "find": collection,
        "filter": {"_id": {"$in": ids}},
        "batchSize": len(ids),
        "singleBatch": True,
    }
    return Search(database, command, sent)


def is_of_an_id(error: Document | None) -> bool:
    """Return True for a duplicate of an ``_id``, as the server's own words have it."""
    return (
        isinstance(error, Mapping)
        and error.get("code") == DUPLICATE_KEY
        and list(error.get("keyPattern", ())) == ["_id"]
    )


def may_be_applied(failure: Failure) -> bool:
    """Return True if the server may have executed the attempt, and would not recognize another."""
    sent = failure.stage is not Stage.NOT_SENT and not failure.retryable_overload
    return sent and not failure.carried_txn_number


def recognize(attempts: DriverAttempts) -> None:
    """Have further attempts of an ``insert_one`` succeed if they find its own document."""
    send, client = attempts.function, attempts.client
    inserted = driver.inserts.document_of(send)
    if inserted is None:
        return

    def send_again(session: AnySession | None, connection: Connection, retryable: bool) -> Any:
        try:
            return send(session, connection, retryable)
        except DuplicateKeyError as error:
            search = _of_insert_one(*inserted, error)
            if search is None or not _all(search, _reply(search, connection, session, client)):
                raise
            return None

    async def send_again_async(
        session: AnySession | None, connection: Connection, retryable: bool
    ) -> Any:
        try:
            return await send(session, connection, retryable)
        except DuplicateKeyError as error:
            search = _of_insert_one(*inserted, error)
            if search is None:
                raise
            if not _all(search, await _reply_async(search, connection, session, client)):
                raise
            return None

    is_async = iscoroutinefunction(send)
    attempts.replace_function(send_again_async if is_async else send_again)


def _of_insert_one(
    coll: AnyCollection, document: Document, error: DuplicateKeyError
) -> Search | None:
    with contain_internal_errors("after a duplicate key"):
        if is_of_an_id(error.details):
            return search_for(coll.database.name, coll.name, [document], coll.codec_options)
    return None


def _all(search: Search, reply: Reply | None) -> bool:
    with contain_internal_errors("after a duplicate key"):
        return reply is not None and all(search.found(reply))
    return False


def _reply(
    search: Search,
    connection: Connection,
    session: AnySession | None,
    client: AnyClient,
) -> Reply | None:
    """None if the documents cannot be read: then nothing is known of them."""
    try:
        reply: Reply = search.run(connection, session, client)
    except PyMongoError:
        return None
    return reply


async def _reply_async(
    search: Search,
    connection: Connection,
    session: AnySession | None,
    client: AnyClient,
) -> Reply | None:
    try:
        reply: Reply = await search.run(connection, session, client)
    except PyMongoError:
        return None
    return reply


class Batch(NamedTuple):
    """One command of a bulk write of a collection, with its reply. Immutable."""

    context: BulkContext
    """pymongo's, which has the connection."""
    cmd: Mapping[str, Any]
    reply: Reply
    sent: Sequence[Document]
    at: list[int]
    """The statements that may be an earlier attempt's: those with a duplicate of an ``_id``; of an
    ordered command also all that follow the one at which the server stopped."""
    search: Search
    client: AnyClient

    def settle(self) -> tuple[Reply, Sequence[Any]]:
        return self.settled(_reply(self.search, *self._where()))

    async def settle_async(self) -> tuple[Reply, Sequence[Any]]:
        return self.settled(await _reply_async(self.search, *self._where()))

    def _where(self) -> tuple[Connection, AnySession | None, AnyClient]:
        return self.context.conn, self.context.session, self.client

    def settled(self, stored: Reply | None) -> tuple[Reply, Sequence[Any]]:
        """Return the reply, and what was sent, as pymongo is to see them: own documents count as
        inserted, and an ordered bulk goes on behind them."""
        with contain_internal_errors("after a bulk write"):
            if stored is not None:
                return self._settled(self.search.found(stored))
        return self.reply, self.sent

    def _settled(self, found: list[bool]) -> tuple[Reply, Sequence[Any]]:
        reply, errors = dict(self.reply), list(self.reply["writeErrors"])
        if self.cmd["ordered"]:
            own = [*found, False].index(False)
            if not own:
                return self.reply, self.sent
            del reply["writeErrors"]
            return {**reply, "n": reply["n"] + own}, self.sent[: self.at[0] + own]
        own_at = {index for index, is_own in zip(self.at, found, strict=True) if is_own}
        others = [each for each in errors if each["index"] not in own_at]
        reply["n"] += len(own_at)
        del reply["writeErrors"]
        return {**reply, "writeErrors": others} if others else reply, self.sent


def batch_with_duplicates(
    loop: RetryLoop | None,
    context: BulkContext,
    cmd: Mapping[str, Any],
    reply: Reply,
    sent: Sequence[Any],
) -> Batch | None:
    """The batch, if an earlier attempt of it may have inserted what is reported as duplicates."""
    if "writeErrors" not in reply or "insert" not in cmd or "txnNumber" in cmd:
        return None
    with contain_internal_errors("after a bulk write"):
        if loop is None or not loop.may_be_applied:
            return None
        at = [each["index"] for each in reply["writeErrors"] if is_of_an_id(each)]
        if not at:
            return None
        if cmd["ordered"]:
            at = list(range(at[0], len(sent)))
        documents = [sent[index] for index in at]
        search = search_for(context.db_name, cmd["insert"], documents, context.codec)
        return Batch(context, cmd, reply, sent, at, search, loop.client)
    return None
