"""The only package that names private parts of pymongo, one module for each part.

``private_names`` lists them all by the feature that needs them, for ``self_check``: begin there to
support a new pymongo. Nothing is decided here.

What is kept on an object of the driver, a client or a session, is set and read as an attribute:
once the ``__dict__`` of an instance was read, CPython 3.11 and 3.12 take longer for each of
its attributes, for good, and an operation reads fifty of a client and its topology.
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

# What the engine cannot know by itself.
catch_also(PyMongoError, BSONError)
withhold_texts_of("pymongo", "bson", "gridfs")
