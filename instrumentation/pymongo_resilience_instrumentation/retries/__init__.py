"""Runs pymongo's retry loop with the engine's rules.

``pymongo_resilience/rules/retry_rules.py`` decides whether and when to retry. Here,
``loop_subclass`` sends the attempts, ``retry_loop`` prepares them, ``failed_attempts`` collects the
facts of a failure and chooses the error to raise, and ``txn_number`` keeps the transaction number
of a write.
"""
