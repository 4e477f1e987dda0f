"""The only package that uses private names of pymongo, with one module for each part of it.

``private_names`` lists them all, by the feature that needs them, for ``self_check``. Begin there to
support a new pymongo. Retry rules and timeouts are decided in other packages. The modules here
decide only what follows from pymongo's own state: for example, the kind of a command, whether a
transaction stays pinned to its router, and which method of pymongo to call after a failed attempt.

Values that the library keeps on pymongo's objects are set and read as attributes. Reading the
``__dict__`` of an instance makes each later attribute access slower, permanently, in CPython 3.11
and 3.12, and an operation reads about fifty attributes of a client and its topology.
"""

from __future__ import annotations

from bson.errors import BSONError
from pymongo.errors import PyMongoError

from pymongo_resilience.internal_errors import catch_also
from pymongo_resilience.redaction import withhold_texts_of

from . import (
    attempts,
    clients,
    connections,
    csot,
    cursors,
    dialing,
    finds,
    inserts,
    monitors,
    private_names,
    selection,
    sessions,
)

# The engine cannot know these types and packages by itself.
catch_also(PyMongoError, BSONError)
withhold_texts_of("pymongo", "bson", "gridfs")
