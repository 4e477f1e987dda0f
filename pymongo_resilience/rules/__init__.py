"""Whether a failed attempt is repeated, and when.

``failure`` and ``retry_state`` are the facts, ``retry_rules`` decides. Nothing here knows the
driver.
"""
