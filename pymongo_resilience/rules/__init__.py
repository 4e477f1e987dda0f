"""Whether a failed attempt is repeated, and when.

``failure`` and ``retried_operation`` are the facts, ``retry_rules`` decides, ``executor`` takes the
steps, ``events`` reports them. Nothing here knows the driver.
"""
