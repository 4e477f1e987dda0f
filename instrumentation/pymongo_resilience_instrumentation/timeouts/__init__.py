"""How long an operation has, and what keeps to it.

``precedence`` is the table of who sets how long. ``bounded_waits`` cuts pymongo's waits for a
server, the pool and a socket to what is left, ``wait_times`` measures them, ``max_time_ms`` sets a
command's maxTimeMS. ``cursor_timeouts`` and ``transaction_timeouts`` are what cursors and
transactions keep; ``timeout_errors`` makes the OperationTimeoutError.
"""
