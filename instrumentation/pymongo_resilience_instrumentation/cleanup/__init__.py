"""killCursors and endSessions, which pymongo sends past its retry loop.

``cleanup_commands`` repeats them for an overloaded server. ``background`` is a client's background
task: it repeats the killCursors of collected cursors, and runs what is left for it.
"""
