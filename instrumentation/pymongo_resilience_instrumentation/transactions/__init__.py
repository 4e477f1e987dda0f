"""Sessions and transactions.

``wrappers`` has ``with_transaction``, one timeout for all of it, and commit and abort; ``by_hand``
is retry_transaction(); ``repetition`` is what that and the atomic writes repeat; ``sessions`` finds
the session of a call and its default timeout. Spans: ``telemetry/transaction_spans.py``.
"""
