"""pymongo's retry loop, whose attempts the engine's rules repeat.

Whether and when is decided in ``pymongo_resilience/rules/retry_rules.py``. Here ``loop_subclass``
sends an attempt and prepares the next one, ``failed_attempts`` states the facts of a failure and
chooses what is raised, and ``txn_number`` keeps the number of a write.
"""
