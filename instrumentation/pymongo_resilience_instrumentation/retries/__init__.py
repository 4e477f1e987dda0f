"""Runs pymongo's retry loop with the engine's rules.

``pymongo_resilience/rules/retry_rules.py`` decides whether and when to retry. Here,
``loop_subclass`` makes the first attempt, ``loop_steps`` begins and ends a run, ``after_failure``
owns everything that only a failure needs, ``final_error`` chooses the error to raise, and
``txn_number`` keeps the transaction number of a write.
"""
