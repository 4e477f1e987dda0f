"""Retried inserts that find the document of their own earlier attempt.

This applies only if both of these hold:

- The write is sent without a transaction number, for example to a standalone server. Such a write
  is retried only if the application declared it idempotent.
- An earlier attempt may have been applied, usually because its reply was lost.

Without a transaction number, the server does not recognize the retry. If the earlier attempt has
stored the document, the retry fails with a duplicate key error. The library then reads the document
with that ``_id``. If it is byte for byte the document that was sent, the insert counts as
successful. Otherwise, the application gets the error. Documents are read only after such an error.

``driver/inserts.py`` reads the document of an ``insert_one`` from a local variable of pymongo. If
the installed pymongo does not have that variable, ``instrument()`` logs an error, and a retried
``insert_one`` raises DuplicateKeyError.

A replacement with ``upsert=True`` is treated like an insert. An update with operators is not,
because only the server can compute the document that it would have inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bson import encode
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from pymongo.errors import DuplicateKeyError, PyMongoError

from pymongo_resilience.internal_errors import contain_internal_errors
from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.error_texts import DUPLICATE_KEY

if TYPE_CHECKING:
    from bson.codec_options import CodecOptions

    from pymongo_resilience_instrumentation.call import AnyClient, AnySession
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.driver.inserts import SentDocument
    from pymongo_resilience_instrumentation.driver.protocols import (
        BulkContext,
        Connection,
        Document,
    )

    from .after_failure import Retries

    Where = tuple[Connection, AnySession | None, AnyClient]


Reply = Mapping[str, Any]
Namespace = tuple[str, str]
"""Database and collection."""


class OwnDocument(NamedTuple):
    """A document that an earlier attempt may have stored. Immutable."""

    namespace: Namespace
    stored: bytes
    """The BSON that the server stores if the attempt was applied."""
    upserted_id: Any = None
    """The document's ``_id`` if it comes from an upsert."""
    is_upsert: bool = False


def inserted(namespace: Namespace, document: Document, codec: CodecOptions[Any]) -> OwnDocument:
    """Return the document that an insert stores."""
    return OwnDocument(namespace, encode(document, codec_options=codec))


def upserted(
    namespace: Namespace, replacement: Document, codec: CodecOptions[Any], error: Reply
) -> OwnDocument:
    """Return the document that a replacement with ``upsert=True`` stores.

    Args:
        namespace: The collection.
        replacement: The replacement document, which need not contain an ``_id``.
        codec: The options with which pymongo encodes the document.
        error: The server's duplicate key error. It contains the ``_id`` of the document.
    """
    upserted_id = error["keyValue"]["_id"]
    document = {"_id": upserted_id, **{k: v for k, v in replacement.items() if k != "_id"}}
    return OwnDocument(
        namespace, encode(document, codec_options=codec), upserted_id, is_upsert=True
    )


class Search(NamedTuple):
    """A find for documents of one collection by ``_id``. Immutable."""

    namespace: Namespace
    command: dict[str, Any]

    def run(self, connection: Connection, session: AnySession | None, client: AnyClient) -> Any:
        """Send the find on the connection whose server reported the duplicates.

        Returns the reply; in async clients, an awaitable.
        """
        return connection.command(
            self.namespace[0],
            self.command,
            codec_options=DEFAULT_RAW_BSON_OPTIONS,
            session=session,
            client=client,
        )

    def found(self, reply: Reply) -> Iterator[tuple[Namespace, bytes]]:
        """Yield the documents in the reply, as their namespace and BSON."""
        for document in reply["cursor"]["firstBatch"]:
            yield self.namespace, document.raw


def searches_for(documents: Sequence[OwnDocument]) -> list[Search]:
    """Return one search for each collection that the documents belong to."""
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
    """Return the documents that are stored under the ``_id`` of each given document.

    A collection that cannot be read is skipped, so its documents count as not stored.

    Args:
        documents: The documents to look for.
        where: The connection, session and client to use.
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
    """Do the same as ``stored_documents`` in an async client."""
    found: set[tuple[Namespace, bytes]] = set()
    for search in searches_for(documents):
        try:
            found.update(search.found(await search.run(*where)))
        except PyMongoError:
            continue
    return found


def is_of_an_id(error: Document | None) -> bool:
    """Return True if the server reports a duplicate ``_id``, not a duplicate in another index."""
    return (
        isinstance(error, Mapping)
        and error.get("code") == DUPLICATE_KEY
        and list(error.get("keyPattern", ())) == ["_id"]
    )


DOING = "after a duplicate key"


def recognize(attempts: DriverAttempts) -> None:
    """Let further attempts of an ``insert_one`` or a ``replace_one`` succeed if they find the
    document of an earlier attempt.

    Has no effect on other operations. ``batch_with_duplicates`` handles bulk writes.
    """
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
    """Return the document that an earlier attempt may have stored, or None if the error is about
    another index than that of ``_id``.
    """
    if not is_of_an_id(error.details):
        return None
    coll, details = sent.collection, error.details or {}
    namespace = coll.database.name, coll.name
    if sent.is_upsert:
        return upserted(namespace, sent.document, coll.codec_options, details)
    return inserted(namespace, sent.document, coll.codec_options)


def _result(own: OwnDocument) -> dict[str, Any] | None:
    """Return what pymongo's function returns after a success: None for an insert, the reply for an
    upsert.
    """
    if not own.is_upsert:
        return None
    counts = {"n": 1, "nModified": 0, "ok": 1.0, "updatedExisting": False}
    return {**counts, "upserted": own.upserted_id}


class BulkReply(Protocol):
    """The reply to one command of a bulk write, and the statements that were sent. Immutable."""

    def errors(self) -> Iterator[tuple[int, Reply]]:
        """Yield the index and the error of each statement that failed."""
        ...

    def own_document(self, index: int, error: Reply | None) -> OwnDocument | None:
        """Return the document that an earlier attempt of the statement may have stored.

        None if that document is unknown, as for an update with operators.

        Args:
            index: The index of the statement.
            error: The statement's error, or None if the server stopped before the statement.
        """
        ...

    def settled(self, own: Mapping[int, OwnDocument]) -> dict[str, Any]:
        """Return the reply as if the statements with these indexes had just succeeded."""
        ...


class CollectionReply(NamedTuple):
    """The reply to a command of a collection's ``bulk_write`` or ``insert_many``.

    All its statements have the same kind: inserts, or updates and replacements.
    """

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
    """The reply to a command of a client's ``bulk_write``, which may write to several
    collections.
    """

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
    """Return the result of a statement that succeeded, in the server's format."""
    result: dict[str, Any] = {"ok": 1.0, "idx": index, "n": 1}
    if own.is_upsert:
        result |= {"nModified": 0, "upserted": {"_id": own.upserted_id}}
    return result


class Batch(NamedTuple):
    """One command of a bulk write whose reply contains duplicates of an ``_id``. Immutable."""

    bulk: BulkReply
    ordered: bool
    documents: Mapping[int, OwnDocument]
    """The documents that an earlier attempt may have stored, by the index of their statement.

    Unordered: those of all statements that failed with a duplicate ``_id``. Ordered: that of the
    statement at which the server stopped, and those of the inserts directly after it.
    """
    where: Where

    def settle(self) -> tuple[Reply, int | None]:
        """Find out which documents an earlier attempt has stored, and correct the reply.

        Returns:
            The reply for pymongo, in which these documents count as inserted, and the number of
            statements that the reply covers. None means all of them. In an ordered bulk write, the
            server has stopped at the first duplicate. The reply then covers the statements up to
            the last stored document, and pymongo sends the rest as another command.
        """
        return self._settled(stored_documents([*self.documents.values()], self.where))

    async def settle_async(self) -> tuple[Reply, int | None]:
        """Do the same as ``settle`` in an async client."""
        return self._settled(await stored_documents_async([*self.documents.values()], self.where))

    def _settled(self, stored: set[tuple[Namespace, bytes]]) -> tuple[Reply, int | None]:
        own: dict[int, OwnDocument] = {}
        for index, each in self.documents.items():
            if each[:2] in stored:
                own[index] = each
            elif self.ordered:
                # The earlier attempt was ordered as well, so it stored no later document either.
                break
        end = max(own) + 1 if own and self.ordered else None
        return self.bulk.settled(own), end


def batch_with_duplicates(
    attempts: DriverAttempts | None,
    context: BulkContext,
    cmd: Mapping[str, Any],
    reply: Reply,
    sent: Sequence[Any],
) -> Batch | None:
    """Return the command as a batch if an earlier attempt may have stored the documents that the
    server reports as duplicates; otherwise None.

    Args:
        attempts: The attempts of the retry loop, or None if there is none.
        context: pymongo's context of the bulk write, which contains the connection.
        cmd: The command.
        reply: The server's reply.
        sent: The statements; for a client's bulk write, the statements and their namespaces.
    """
    retries = None if attempts is None else attempts.retries
    if "txnNumber" in cmd or retries is None or not retries.attempts.may_be_applied:
        return None
    sent_before = _count_sent_before(retries, len(sent[0]))
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
    return Batch(bulk, cmd["ordered"], documents, (context.conn, context.session, retries.client))


def _count_sent_before(retries: Retries, sent: int) -> int:
    """Return how many of the ``sent`` statements were part of an earlier attempt that may have been
    applied.

    A bulk write may consist of several commands, and a command that was never sent before cannot
    find its own documents. But if a reply was corrected in an ordered bulk write, pymongo sends the
    rest of that command as another command, whose statements were sent before.
    """
    progress = retries.attempts.bulk_progress()
    if progress is None or retries.uncertain_command is None:
        return 0
    run, position = progress
    if progress == retries.uncertain_command:
        retries.uncertain_end = position + sent
    elif run is not retries.uncertain_command[0]:
        return 0
    return max(0, retries.uncertain_end - position)


def _reply_of(
    context: BulkContext, cmd: Mapping[str, Any], reply: Reply, sent: Sequence[Any]
) -> BulkReply | None:
    """Return the reply for the kind of the command, or None if it cannot be corrected."""
    if "bulkWrite" in cmd:
        # If the cursor is open, the reply contains only the first results. pymongo reads the others
        # and closes the cursor, so leave the reply alone.
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
