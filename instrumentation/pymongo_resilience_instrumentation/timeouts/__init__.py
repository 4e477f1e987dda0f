"""Timeouts: how long an operation may take, and what enforces it.

``precedence`` decides which timeout applies, also for transactions and cursors. ``bounded_waits``
limits pymongo's waits for a server, the pool and a socket to the remaining time, and measures them.
``command_limits`` sets the limits of single commands. ``timeout_errors`` creates the
OperationTimeoutError.
"""
