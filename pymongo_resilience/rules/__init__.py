"""Whether a failed attempt is repeated, and when.

``failure`` and ``retried_operation`` are the facts, ``retry_rules`` decides. Nothing here knows the
driver.
"""
