"""Recognizes documents that an earlier attempt of the same insert has stored.

Without a transaction number, the server does not recognize the retry of an insert whose reply was
lost, and reports a duplicate key. If the stored document is byte for byte the one that was sent,
the insert has succeeded. In all other cases the application gets the error. Nothing is read unless
a retry fails in this way.

Comparing bytes is the whole rule: comparing field by field would require deciding what "equal"
means. The search uses the connection that reported the duplicate, so it sees at least what that
server saw.
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
    """A search for documents that were sent. Immutable."""

    database: str
    command: dict[str, Any]
    sent: list[bytes]

    def run(self, connection: Connection, session: AnySession | None, client: AnyClient) -> Any:
        """Send the search to the server that reported the duplicates. Awaitable in async
        clients.
        """
        return connection.command(
            self.database,
            self.command,
            codec_options=DEFAULT_RAW_BSON_OPTIONS,
            session=session,
            client=client,
        )

    def found(self, reply: Reply) -> list[bool]:
        """Return for each document whether it is stored exactly as it was sent."""
        stored = {document.raw for document in reply["cursor"]["firstBatch"]}
        return [document in stored for document in self.sent]


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
    """Return True if the server reports a duplicate of an ``_id``."""
    return (
        isinstance(error, Mapping)
        and error.get("code") == DUPLICATE_KEY
        and list(error.get("keyPattern", ())) == ["_id"]
    )


def may_be_applied(failure: Failure) -> bool:
    """Return True if the server may have run the attempt and would not recognize another one."""
    sent = failure.stage is not Stage.NOT_SENT and not failure.retryable_overload
    return sent and not failure.carried_txn_number


def recognize(attempts: DriverAttempts) -> None:
    """Make further attempts of an ``insert_one`` succeed if they find their own document."""
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
    """Return the reply, or None if the documents cannot be read; then nothing is known about
    them.
    """
    try:
        reply: Reply = search.run(connection, session, client)
    except PyMongoError:
        # Without an answer, the application gets the error of the insert.
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
    """One command of a collection's bulk write, with its reply. Immutable."""

    context: BulkContext
    """pymongo's context, which has the connection."""
    cmd: Mapping[str, Any]
    reply: Reply
    sent: Sequence[Document]
    at: list[int]
    """Indexes of statements that an earlier attempt may have applied: those with a duplicate
    ``_id``, and, in an ordered command, all statements after the one at which the server stopped.
    """
    search: Search
    client: AnyClient

    def settle(self) -> tuple[Reply, Sequence[Any]]:
        return self.settled(_reply(self.search, *self._where()))

    async def settle_async(self) -> tuple[Reply, Sequence[Any]]:
        return self.settled(await _reply_async(self.search, *self._where()))

    def _where(self) -> tuple[Connection, AnySession | None, AnyClient]:
        return self.context.conn, self.context.session, self.client

    def settled(self, stored: Reply | None) -> tuple[Reply, Sequence[Any]]:
        """Return the reply and the documents as pymongo should see them.

        Own documents count as inserted, and an ordered bulk write continues after them.
        """
        with contain_internal_errors("after a bulk write"):
            if stored is not None:
                return self._settled(self.search.found(stored))
        return self.reply, self.sent

    def _settled(self, found: list[bool]) -> tuple[Reply, Sequence[Any]]:
        reply, errors = dict(self.reply), list(self.reply["writeErrors"])
        if self.cmd["ordered"]:
            # In an ordered command, an earlier attempt has stored a number of consecutive
            # documents. Continue after the last one.
            number_of_own = [*found, False].index(False)
            if not number_of_own:
                return self.reply, self.sent
            del reply["writeErrors"]
            return {**reply, "n": reply["n"] + number_of_own}, self.sent[
                : self.at[0] + number_of_own
            ]
        own_at = {index for index, is_own in zip(self.at, found, strict=True) if is_own}
        others = [error for error in errors if error["index"] not in own_at]
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
    """Return the batch if an earlier attempt may have inserted the reported duplicates, else
    None.
    """
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
