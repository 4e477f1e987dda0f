"""Sessions and transactions.

``wrappers`` has ``with_transaction``, one timeout for all of it, and commit and abort; ``by_hand``
is retry_transaction(); ``sessions``
finds the session of a call and its default timeout. Spans: ``telemetry/transaction_spans.py``.
"""
