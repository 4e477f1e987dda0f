"""How long an operation has, and what keeps to it.

``precedence`` is the table of who says how long. ``waits`` cuts pymongo's waits for a server, the
pool and a socket to what is left, ``wait_times`` measures them, ``time_limits`` sees to a command's
maxTimeMS. ``cursor_timeouts`` and ``transaction_timeouts`` are what cursors and transactions keep;
``errors`` makes the OperationTimeoutError.
"""
