"""Observers of operations, and listeners for pymongo's events. Names are in ``semconv``.

``setup`` creates the ``observers`` and calls them. ``operation_spans``, ``transaction_spans`` and
``command_spans`` record spans; ``metrics`` and ``server_gauges`` measure. ``listeners`` receives
pymongo's events of commands and monitors, ``pool_metrics`` those of pools. ``client_tracing`` reads
a client's own options, and detects other instrumentations.
"""
