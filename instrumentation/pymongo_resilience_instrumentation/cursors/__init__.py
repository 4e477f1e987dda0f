"""Cursors and change streams, which outlive the call and the block that made them.

``cursor_creation`` attaches the policy and the timeout; ``batches`` has the batches, ``to_list``,
``close``, and the steps and resumption of change streams. What a cursor keeps of its timeout is in
``timeouts/cursor_timeouts.py``.
"""
