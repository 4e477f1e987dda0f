"""Spans, metrics and what pymongo reports to listeners; names are in ``semconv``.

``operation_spans``, ``command_spans`` and ``transaction_spans`` draw; ``metrics`` and
``driver_metrics`` measure, ``pool_gauges`` reads the clients when the SDK collects. ``listeners``
receives pymongo's events, ``reporting`` our own; ``tracing`` and ``other_tracers`` decide what is
drawn at all.
"""
