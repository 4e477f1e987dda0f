"""pymongo's find, ``_Query``: reads and changes it, sends one in place of a getMore, and handles
its batches.

Raw batches are handled as bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bson import decode_all, encode
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.errors import AutoReconnect
from pymongo.read_concern import ReadConcern
from pymongo.synchronous.command_cursor import CommandCursor

from pymongo_resilience_instrumentation.addresses import Address, address_text

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

    from pymongo_resilience_instrumentation.call import AnySession
    from pymongo_resilience_instrumentation.driver.attempts import DriverAttempts
    from pymongo_resilience_instrumentation.features.resumable_finds.rules import Find

    from .protocols import BatchRequest, Client, Cursor, FindCursor, Query, RawReply, Response

OF_A_QUERY = (
    "client", "coll", "collation", "exhaust", "fields", "flags", "limit", "ntoskip",
    "read_concern", "reset", "session", "spec",
)  # fmt: skip
ADDRESS = "_address"
"""The attribute of a loop, or of a cursor, with the server that it is bound to."""
RESUME_TOKEN, TOKEN_FIELD = "_postbatchresumetoken", "postBatchResumeToken"
"""The attribute of an aggregate's cursor, and the field of a reply that pymongo stores there."""
COMMAND_CURSORS = (CommandCursor, AsyncCommandCursor)
_MODIFIERS = {"$orderby": "sort", "$hint": "hint"}
_TAILABLE = 2
EXACT: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Values decoded with these options can be encoded again without changes."""


class ReadAfter(ReadConcern):
    """A read concern with ``afterClusterTime``: it reads everything that was written until
    ``time``.

    pymongo sends this field only in causally consistent sessions, and implicit sessions are not.
    """

    def __init__(self, read_concern: ReadConcern, time: Timestamp) -> None:
        super().__init__(read_concern.level)
        self._time = time

    @property
    def level(self) -> str:
        """The level. Never empty, because pymongo would then send no read concern."""
        return super().level or "local"

    @property
    def document(self) -> dict[str, Any]:
        level = super().level
        return ({"level": level} if level else {}) | {"afterClusterTime": self._time}


def read(query: Query) -> dict[str, Any]:
    """Return the parts of a find that matter here, by the names of the find command."""
    spec, session = query.spec, query.session
    return dict(
        filter=spec.get("$query", spec),
        projection=query.fields,
        skip=query.ntoskip,
        limit=query.limit,
        collation=query.collation,
        tailable=bool(query.flags & _TAILABLE),
        exhaust=bool(query.exhaust),
        explain="$explain" in spec,
        keys_alone=bool(spec.get("$returnKey")),
        in_transaction=bool(session and session.in_transaction),
        max_time_ms=spec.get("$maxTimeMS"),
        at_snapshot=query.read_concern.level == "snapshot" or _at_snapshot(session),
        load_balanced=bool(query.client.options.load_balanced),
        read_concern_level=query.read_concern.level,
        **{name: spec.get(modifier) for modifier, name in _MODIFIERS.items()},
    )


def _at_snapshot(session: AnySession | None) -> bool:
    options = getattr(session, "options", None)
    return bool(getattr(options, "snapshot", False))


def write(query: Query, find: Find) -> None:
    """Change a query to ``find``, with the names of ``read``. Everything else stays."""
    # Keep modifiers of the query that are not handled here.
    others = dict(query.spec) if "$query" in query.spec else {}
    ours = {modifier: getattr(find, name) for modifier, name in _MODIFIERS.items()}
    given = {modifier: each for modifier, each in ours.items() if each is not None}
    query.spec = others | {"$query": find.filter} | given
    query.fields, query.limit, query.ntoskip = find.projection, find.limit, find.skip


def copied(query: Query, session: AnySession | None) -> Query:
    made = copy.copy(query)
    made.session = session
    return made


def restore(query: Query, original: Query) -> None:
    """Undo ``write``, except for limit and skip. ``original`` is a copy from before."""
    query.spec, query.fields = original.spec, original.fields


def reads_chunks(query: Query) -> bool:
    """Return True if GridFS reads the chunks of a file with the query."""
    # GridFS sorts by ``n``, so ``resumable=True`` would refuse a query that the application has not
    # written itself.
    return str(query.coll).endswith(".chunks") and query.spec.get("$orderby") == {"n": 1}


def is_known(client: Client, address: Address) -> bool:
    """Return True if the last check of the server at ``address`` reached it."""
    found = client.topology_description.server_descriptions().get(address)
    return found is not None and bool(found.is_server_type_known)


def unreachable(address: Address) -> AutoReconnect:
    """Return the error for a cursor whose server cannot be reached."""
    return AutoReconnect(f"{address_text(address)}: the cursor's server is not reachable")


def run_command(query: BatchRequest, command: dict[str, Any], args: Sequence[Any]) -> Any:
    """Run another command on the connection that the loop's function was called with. Returns the
    reply, or an awaitable.
    """
    session, _, connection, preference = args
    return connection.command(
        query.db, command, read_preference=preference, session=session, client=query.client
    )


def run_apart(
    query: BatchRequest, command: dict[str, Any], attempts: DriverAttempts, address: Address
) -> Any:
    """Run another command on the server at ``address``, in its own loop after ``attempts``. Returns
    the reply, or an awaitable.
    """

    def run(*args: Any) -> Any:
        return run_command(query, command, args)

    client: Client = query.client
    name = next(iter(command))
    return client._retryable_read(
        run, attempts.loop._read_pref, query.session, name, address=address
    )


def operation_time(response: Response) -> Timestamp | None:
    """Return the time of the server's last operation, or None outside of a replica set."""
    time: Timestamp | None = response.docs[0].get("operationTime")
    return time


def batch_of(response: Response) -> list[Any]:
    cursor = response.docs[0]["cursor"]
    batch: list[Any] = cursor["firstBatch" if "firstBatch" in cursor else "nextBatch"]
    return batch


def cursor_id(response: Response) -> int:
    """Return the ID of the cursor; 0 after the last batch."""
    return int(response.docs[0]["cursor"]["id"])


def as_of_getmore(response: Response) -> None:
    """Turn the reply to a find into a reply to a getMore. Published events do not change."""
    _replace_batch(response, "nextBatch", batch_of(response))


def _replace_batch(response: Response, name: str, batch: list[Any]) -> None:
    docs: Any = response.docs  # a list
    document = docs[0]
    # Replace the reply instead of changing it: listeners may have kept the one that pymongo
    # published.
    docs[0] = {**document, "cursor": {**document["cursor"], name: batch}}


def last_id(reply: RawReply) -> Any:
    """Return the ``_id`` of the last document as the server sent it. Raises KeyError if it has
    none.
    """
    # Decode the raw reply, because the application's codec may have changed the ``_id``.
    cursor = RawBSONDocument(bytes(reply.raw_command_response()), EXACT)["cursor"]
    return cursor["firstBatch" if "firstBatch" in cursor else "nextBatch"][-1]["_id"]


def retrieved(cursor: Cursor) -> Any:
    """Return the number of documents in all batches that pymongo has retrieved.

    For the cursor of an aggregate, it is the number that ``note_retrieved`` has left there, or
    something else if a later batch came without it.
    """
    return getattr(cursor, RESUME_TOKEN if is_of_command(cursor) else "retrieved")


def note_retrieved(response: Response, count: int) -> None:
    """Make pymongo keep the number of documents on the cursor of an aggregate.

    pymongo stores the resume token of each batch, which only change streams have.
    """
    docs: Any = response.docs  # a list
    document = docs[0]
    docs[0] = {**document, "cursor": {**document["cursor"], TOKEN_FIELD: count}}


def is_of_command(cursor: Cursor) -> bool:
    """Return True for the cursor of an aggregate."""
    return isinstance(cursor, COMMAND_CURSORS)


def move(cursor: Cursor, address: Address) -> None:
    """Send further batches to the server at ``address``. pymongo only does so for finds."""
    if is_of_command(cursor):
        setattr(cursor, ADDRESS, address)


def unbind(attempts: DriverAttempts) -> None:
    """Allow further attempts to go to any suitable server."""
    # pymongo binds a getMore to the server of its cursor.
    attempts.loop._address = None


def count(batch: Sequence[Any]) -> int:
    """Return the number of documents in a batch, including raw batches."""
    return sum(len(decode_all(each, EXACT)) if isinstance(each, bytes) else 1 for each in batch)


def hide_ids(response: Response, cursor: FindCursor) -> None:
    """Remove ``_id`` from the documents of a batch."""
    options = cursor.collection.codec_options
    name = "firstBatch" if "firstBatch" in response.docs[0]["cursor"] else "nextBatch"
    _replace_batch(response, name, [without_id(each, options) for each in batch_of(response)])


def without_id(document: Any, options: CodecOptions[Any]) -> Any:
    """Return a document, or a sequence of raw ones, without ``_id``."""
    if isinstance(document, bytes):
        return b"".join(without_id(each, EXACT).raw for each in decode_all(document, EXACT))
    if not isinstance(document, RawBSONDocument):
        document.pop("_id", None)
        return document
    # Not with the application's own options, which may change values so that they cannot be encoded
    # again.
    fields = RawBSONDocument(document.raw, EXACT).items()
    kept = encode({name: value for name, value in fields if name != "_id"}, codec_options=EXACT)
    return type(document)(kept, options)
