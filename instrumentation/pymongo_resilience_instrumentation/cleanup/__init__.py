"""killCursors and endSessions, which pymongo sends past its retry loop, and its background task."""
