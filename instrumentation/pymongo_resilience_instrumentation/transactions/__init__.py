"""Sessions and transactions.

``session_methods`` has ``with_transaction``, one timeout for all of it, and commit and abort;
``repeated_transactions`` has retry_transaction() and what the atomic writes run, ``repetition``
decides what they repeat; ``call_sessions`` finds the session of a call and its default timeout.
Spans: ``telemetry/transaction_spans.py``.
"""
