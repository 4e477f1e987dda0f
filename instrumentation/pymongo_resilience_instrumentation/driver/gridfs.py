"""pymongo's GridFS classes, and the collection of files that belongs to each object.

Imported only if the application has imported gridfs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridfs.asynchronous.grid_file import AsyncGridFS, AsyncGridFSBucket, AsyncGridIn, AsyncGridOut
from gridfs.synchronous.grid_file import GridFS, GridFSBucket, GridIn, GridOut

if TYPE_CHECKING:
    from .protocols import AnyCollection

    Bucket = GridFS | GridFSBucket | AsyncGridFS | AsyncGridFSBucket
    Stream = GridIn | GridOut | AsyncGridIn | AsyncGridOut


def gridfs_buckets() -> tuple[type, ...]:
    return GridFS, GridFSBucket, AsyncGridFS, AsyncGridFSBucket


def gridfs_streams() -> tuple[type, ...]:
    return GridIn, GridOut, AsyncGridIn, AsyncGridOut


def files_of_bucket(bucket: Bucket) -> AnyCollection:
    return bucket._files


def files_of_stream(stream: Stream) -> AnyCollection:
    """Return the collection of files. A writing stream refers to the root collection, a reading one
    to the files.
    """
    return stream._coll.files if isinstance(stream, GridIn | AsyncGridIn) else stream._files
