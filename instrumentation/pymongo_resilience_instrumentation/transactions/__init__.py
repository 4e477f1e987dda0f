"""Sessions and transactions.

``session_methods`` wraps the methods of sessions: default timeouts, with_transaction with a single
timeout, commit and abort. ``retry_transaction`` implements the public function and runs atomic
writes. Their spans are in ``telemetry/transaction_spans.py``.
"""
