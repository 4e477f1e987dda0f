"""Spans, metrics and what pymongo reports to listeners; names are in ``semconv``.

``operation_spans``, ``transaction_spans`` and ``commands/`` record spans; ``metrics/`` measures.
``listeners`` receives pymongo's events, ``decisions`` our own. ``client_tracing`` reads what a
client asks for, and who else records.
"""
