"""Sessions and transactions.

``session_methods`` has ``with_transaction``, one timeout for all of it, and commit and abort;
``retry_transaction`` is the function of that name; ``transaction_repeats`` is what that and the
atomic writes repeat, and ``unfinished_sessions`` ends what was interrupted; ``call_sessions`` finds
the session of a call and its default timeout. Spans: ``telemetry/transaction_spans.py``.
"""
