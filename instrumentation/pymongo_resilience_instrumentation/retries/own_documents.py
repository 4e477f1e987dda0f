"""Inserts that find their own documents: the reply of an earlier attempt was lost.

Without a transaction number the server does not recognize the retry, and answers with a duplicate
key. If the stored document is byte for byte the one that was sent, the insert has succeeded; what
else may be the case, the error leaves to the application. Nothing is read unless a retry fails so.

A replacement that inserts if nothing matches is treated alike. What an update with operators would
have inserted, only the server knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bson import encode
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from pymongo.errors import DuplicateKeyError, PyMongoError

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience.rules.failure import Stage
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.error_texts import DUPLICATE_KEY

if TYPE_CHECKING:
    from bson.codec_options import CodecOptions

    from pymongo_resilience.rules.failure import Failure
    from pymongo_resilience_instrumentation.call import AnyClient, AnySession
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.inserts import SentDocument
    from pymongo_resilience_instrumentation.driver.protocols import (
        BulkContext,
        Connection,
        Document,
    )

    from .retry_loop import RetryLoop

    Where = tuple[Connection, AnySession | None, AnyClient]


Reply = Mapping[str, Any]
Namespace = tuple[str, str]
"""Database and collection."""


class OwnDocument(NamedTuple):
    """A document that an earlier attempt may have stored. Immutable."""

    namespace: Namespace
    stored: bytes
    """What the server has stored if it was that attempt."""
    upserted_id: Any = None
    """The ``_id``, if the document comes from an upsert."""
    is_upsert: bool = False


def inserted(namespace: Namespace, document: Document, codec: CodecOptions[Any]) -> OwnDocument:
    return OwnDocument(namespace, encode(document, codec_options=codec))


def upserted(
    namespace: Namespace, replacement: Document, codec: CodecOptions[Any], error: Reply
) -> OwnDocument:
    """``error``: the server's, which names the ``_id`` that it would have given the document."""
    upserted_id = error["keyValue"]["_id"]
    document = {"_id": upserted_id, **{k: v for k, v in replacement.items() if k != "_id"}}
    return OwnDocument(
        namespace, encode(document, codec_options=codec), upserted_id, is_upsert=True
    )


class Search(NamedTuple):
    """Looks for documents of one collection. Immutable."""

    namespace: Namespace
    command: dict[str, Any]

    def run(self, connection: Connection, session: AnySession | None, client: AnyClient) -> Any:
        """Ask the server that reported the duplicates; awaitable in async clients."""
        return connection.command(
            self.namespace[0],
            self.command,
            codec_options=DEFAULT_RAW_BSON_OPTIONS,
            session=session,
            client=client,
        )

    def found(self, reply: Reply) -> Iterator[tuple[Namespace, bytes]]:
        for document in reply["cursor"]["firstBatch"]:
            yield self.namespace, document.raw


def searches_for(documents: Sequence[OwnDocument]) -> list[Search]:
    ids: dict[Namespace, list[Any]] = {}
    for each in documents:
        ids.setdefault(each.namespace, []).append(RawBSONDocument(each.stored)["_id"])
    return [
        Search(
            namespace,
            {
                "find": namespace[1],
                "filter": {"_id": {"$in": wanted}},
                "batchSize": len(wanted),
                "singleBatch": True,
            },
        )
        for namespace, wanted in ids.items()
    ]


def stored_documents(
    documents: Sequence[OwnDocument], where: Where
) -> set[tuple[Namespace, bytes]]:
    """Return what is stored under their ids. ``where``: connection, session and client.

    Of what cannot be read, nothing is known.
    """
    found: set[tuple[Namespace, bytes]] = set()
    for search in searches_for(documents):
        try:
            found.update(search.found(search.run(*where)))
        except PyMongoError:
            continue
    return found


async def stored_documents_async(
    documents: Sequence[OwnDocument], where: Where
) -> set[tuple[Namespace, bytes]]:
    found: set[tuple[Namespace, bytes]] = set()
    for search in searches_for(documents):
        try:
            found.update(search.found(await search.run(*where)))
        except PyMongoError:
            continue
    return found


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


DOING = "after a duplicate key"


def recognize(attempts: DriverAttempts) -> None:
    """Have further attempts of an ``insert_one`` or ``replace_one`` succeed if they find its own
    document."""
    send, client = attempts.function, attempts.client
    sent = driver.inserts.document_of(send)
    if sent is None:
        return

    def send_again(session: AnySession | None, connection: Connection, retryable: bool) -> Any:
        try:
            return send(session, connection, retryable)
        except DuplicateKeyError as error:
            with contain_internal_errors(DOING):
                where = connection, session, client
                if (own := _own_document(sent, error)) is not None and (
                    own[:2] in stored_documents([own], where)
                ):
                    return _result(own)
            raise

    async def send_again_async(
        session: AnySession | None, connection: Connection, retryable: bool
    ) -> Any:
        try:
            return await send(session, connection, retryable)
        except DuplicateKeyError as error:
            with contain_internal_errors(DOING):
                where = connection, session, client
                if (own := _own_document(sent, error)) is not None and (
                    own[:2] in await stored_documents_async([own], where)
                ):
                    return _result(own)
            raise

    is_async = iscoroutinefunction(send)
    attempts.replace_function(send_again_async if is_async else send_again)


def _own_document(sent: SentDocument, error: DuplicateKeyError) -> OwnDocument | None:
    if not is_of_an_id(error.details):
        return None
    coll, details = sent.collection, error.details or {}
    namespace = coll.database.name, coll.name
    if sent.is_upsert:
        return upserted(namespace, sent.document, coll.codec_options, details)
    return inserted(namespace, sent.document, coll.codec_options)


def _result(own: OwnDocument) -> dict[str, Any] | None:
    """What pymongo's own function returns; nothing for an insert."""
    if not own.is_upsert:
        return None
    counts = {"n": 1, "nModified": 0, "ok": 1.0, "updatedExisting": False}
    return {**counts, "upserted": own.upserted_id}


class BulkReply(Protocol):
    """The reply to one command of a bulk write, with what was sent. Immutable."""

    def errors(self) -> Iterator[tuple[int, Reply]]:
        """Return the errors of statements, each with the statement's index."""
        ...

    def own_document(self, index: int, error: Reply | None) -> OwnDocument | None:
        """Return what the statement may have stored; None if it stores no whole document.

        ``error``: the statement's; None for a statement that the server has not come to.
        """
        ...

    def settled(self, own: Mapping[int, OwnDocument]) -> dict[str, Any]:
        """Return the reply as if the statements with these indexes had just been executed."""
        ...


class CollectionReply(NamedTuple):
    """For a collection's ``bulk_write``, or ``insert_many``: all statements are of one kind."""

    reply: Reply
    namespace: Namespace
    sent: Sequence[Document]
    inserts: bool
    codec: CodecOptions[Any]

    def errors(self) -> Iterator[tuple[int, Reply]]:
        for each in self.reply["writeErrors"]:
            yield each["index"], each

    def own_document(self, index: int, error: Reply | None) -> OwnDocument | None:
        statement = self.sent[index]
        if self.inserts:
            return inserted(self.namespace, statement, self.codec)
        if error is None or not statement["upsert"]:
            return None
        if not driver.inserts.is_replacement(statement["u"]):
            return None
        return upserted(self.namespace, statement["u"], self.codec, error)

    def settled(self, own: Mapping[int, OwnDocument]) -> dict[str, Any]:
        others = [each for each in self.reply["writeErrors"] if each["index"] not in own]
        settled = {**self.reply, "n": self.reply["n"] + len(own), "writeErrors": others}
        if not others:
            del settled["writeErrors"]
        upserts = [
            {"index": at, "_id": each.upserted_id} for at, each in own.items() if each.is_upsert
        ]
        if upserts:
            settled["upserted"] = [*self.reply.get("upserted", ()), *upserts]
        return settled


class ClientReply(NamedTuple):
    """For a client's ``bulk_write``, whose statements may be of several collections."""

    reply: Reply
    namespaces: Sequence[Namespace]
    sent: Sequence[Document]
    errors_only: bool
    codec: CodecOptions[Any]

    def errors(self) -> Iterator[tuple[int, Reply]]:
        for each in self.reply["cursor"]["firstBatch"]:
            if not each["ok"]:
                yield each["idx"], each

    def own_document(self, index: int, error: Reply | None) -> OwnDocument | None:
        statement = self.sent[index]
        if "insert" in statement:
            namespace = self.namespaces[statement["insert"]]
            return inserted(namespace, statement["document"], self.codec)
        if error is None or not statement.get("upsert"):
            return None
        if not driver.inserts.is_replacement(statement["updateMods"]):
            return None
        namespace = self.namespaces[statement["update"]]
        return upserted(namespace, statement["updateMods"], self.codec, error)

    def settled(self, own: Mapping[int, OwnDocument]) -> dict[str, Any]:
        cursor = self.reply["cursor"]
        results = [each for each in cursor["firstBatch"] if each["idx"] not in own]
        others = sum(not each["ok"] for each in results)
        if not self.errors_only:
            results += [_statement_result(at, each) for at, each in own.items()]
            results.sort(key=lambda each: each["idx"])
        upserts = sum(each.is_upsert for each in own.values())
        return {
            **self.reply,
            "cursor": {**cursor, "firstBatch": results},
            "nErrors": others,
            "nInserted": self.reply["nInserted"] + len(own) - upserts,
            "nUpserted": self.reply["nUpserted"] + upserts,
        }


def _statement_result(index: int, own: OwnDocument) -> dict[str, Any]:
    result: dict[str, Any] = {"ok": 1.0, "idx": index, "n": 1}
    if own.is_upsert:
        result |= {"nModified": 0, "upserted": {"_id": own.upserted_id}}
    return result


class Batch(NamedTuple):
    """One command of a bulk write whose reply names duplicates. Immutable."""

    bulk: BulkReply
    ordered: bool
    documents: Mapping[int, OwnDocument]
    """What may be an earlier attempt's: the statements with a duplicate of an ``_id``; of an
    ordered command, the one at which the server stopped, and the inserts that follow it."""
    where: Where

    def settle(self) -> tuple[Reply, int | None]:
        """Return the reply as pymongo is to see it: own documents count as inserted; and how many
        statements were sent, None for all, since an ordered bulk goes on behind its own documents.
        """
        return self._settled(stored_documents([*self.documents.values()], self.where))

    async def settle_async(self) -> tuple[Reply, int | None]:
        return self._settled(await stored_documents_async([*self.documents.values()], self.where))

    def _settled(self, stored: set[tuple[Namespace, bytes]]) -> tuple[Reply, int | None]:
        own: dict[int, OwnDocument] = {}
        for index, each in self.documents.items():
            if each[:2] in stored:
                own[index] = each
            elif self.ordered:
                break
        end = max(own) + 1 if own and self.ordered else None
        return self.bulk.settled(own), end


def batch_with_duplicates(
    loop: RetryLoop | None,
    context: BulkContext,
    cmd: Mapping[str, Any],
    reply: Reply,
    sent: Sequence[Any],
) -> Batch | None:
    """Return the batch, if an earlier attempt of it may have stored what is reported as duplicates.

    Args:
        loop: the retry loop; None if there is none.
        context: pymongo's, which has the connection.
        cmd: the command.
        reply: the server's.
        sent: the statements, and for a client's bulk the namespaces.
    """
    if "txnNumber" in cmd or loop is None or not loop.may_be_applied:
        return None
    sent_before = _count_sent_before(loop, len(sent[0]))
    bulk = _reply_of(context, cmd, reply, sent)
    if bulk is None:
        return None
    errors = {
        index: error for index, error in bulk.errors() if index < sent_before and is_of_an_id(error)
    }
    documents = {
        index: own
        for index, error in errors.items()
        if (own := bulk.own_document(index, error)) is not None
    }
    if not documents:
        return None
    if cmd["ordered"]:
        for index in range(max(documents) + 1, min(sent_before, len(sent[0]))):
            if (own := bulk.own_document(index, None)) is None:
                break
            documents[index] = own
    return Batch(bulk, cmd["ordered"], documents, (context.conn, context.session, loop.client))


def _count_sent_before(loop: RetryLoop, sent: int) -> int:
    """Return how many of the ``sent`` statements an earlier attempt contained.

    A bulk write consists of several commands, and one that was never sent before cannot meet its
    own documents. After own documents in an ordered bulk write, pymongo sends the rest of the same
    command as another one.
    """
    progress = loop.attempts.bulk_progress()
    if progress is None or loop.uncertain_command is None:
        return 0
    run, position = progress
    if progress == loop.uncertain_command:
        loop.uncertain_end = position + sent
    elif run is not loop.uncertain_command[0]:
        return 0
    return max(0, loop.uncertain_end - position)


def _reply_of(
    context: BulkContext, cmd: Mapping[str, Any], reply: Reply, sent: Sequence[Any]
) -> BulkReply | None:
    if "bulkWrite" in cmd:
        # Of more than one batch, the rest is behind a cursor that pymongo reads and closes.
        if reply.get("error") or not reply.get("nErrors") or reply["cursor"]["id"]:
            return None
        statements, namespaces = sent
        named = [tuple(each["ns"].split(".", 1)) for each in namespaces]
        return ClientReply(reply, named, statements, cmd["errorsOnly"], context.codec)
    if "writeErrors" not in reply or not ("insert" in cmd or "update" in cmd):
        return None
    inserts = "insert" in cmd
    namespace = context.db_name, cmd["insert" if inserts else "update"]
    return CollectionReply(reply, namespace, sent[0], inserts, context.codec)
