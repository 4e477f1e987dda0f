"""How long an operation has, and what keeps to it.

``precedence`` is the table of who sets how long, transactions and cursors included.
``bounded_waits`` cuts pymongo's waits for a server, the pool and a socket to what is left, and
measures them; ``command_limits`` has a command's limits. ``timeout_errors`` makes the
OperationTimeoutError.
"""
