"""killCursors and endSessions, which pymongo sends past its retry loop.

``cleanup_work`` makes each of them the work of an executor, by the same rules as operations.
``kill_cursors`` has those of a closed cursor and of a client's background task, which must not
sleep; ``end_sessions`` those of a client that is closed.
"""
