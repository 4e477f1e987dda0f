"""Spans, metrics and what pymongo reports to listeners; names are in ``semconv``.

``operation_spans``, ``transaction_spans`` and ``command_spans`` record spans, ``metrics`` and
``server_gauges`` measure. ``listeners`` receives the events of pymongo's pools and monitors,
``decisions`` our own. ``client_tracing`` reads what a client asks for, and who else records.
"""
