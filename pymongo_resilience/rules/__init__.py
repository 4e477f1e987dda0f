"""The rules that decide whether and when a failed attempt is retried.

``failure`` and ``retry_state`` hold the facts, ``retry_rules`` decides. This package does not
depend on pymongo.
"""
