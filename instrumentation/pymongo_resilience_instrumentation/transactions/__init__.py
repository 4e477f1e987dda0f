"""Sessions and transactions.

``session_methods`` finds the session of an operation and its default timeout, and has
with_transaction, one timeout for all of it, and commit and abort. ``retry_transaction`` has the
function of that name and what the atomic writes run. Spans: ``telemetry/transaction_spans.py``.
"""
