"""Which operations change something, by their names in telemetry."""

from __future__ import annotations

WRITES = frozenset({"insert", "update", "delete", "findAndModify", "bulkWrite"})
DEFINITIONS = frozenset({
    "createCollection", "createIndexes", "createSearchIndexes", "dropCollection", "dropDatabase",
    "dropIndexes", "dropSearchIndex", "renameCollection", "updateSearchIndex",
})  # fmt: skip
"""What changes collections rather than documents."""
CHANGES = WRITES | DEFINITIONS
COMMIT, ABORT = "commitTransaction", "abortTransaction"
"""The ends of a transaction: what is sent to ``admin``, whatever it has changed."""
END_SESSIONS = "endSessions"
