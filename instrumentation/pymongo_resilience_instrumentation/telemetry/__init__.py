"""Spans, metrics and what pymongo reports to listeners; names are in ``semconv``.

``operation_spans``, ``transaction_spans`` and ``commands/`` make spans; ``metrics/`` measures;
``sdk/`` does both faster where the SDK is OpenTelemetry's own. ``listeners`` receives pymongo's
events, ``decision_listeners`` our own. What is recorded at all: ``client_tracing`` reads what a
client asks for, ``sampling`` what the SDK does, ``other_tracers`` who else records.
"""
