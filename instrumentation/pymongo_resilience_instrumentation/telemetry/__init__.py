"""Spans, metrics and what pymongo reports to listeners; names are in ``semconv``.

``operation_spans``, ``transaction_spans`` and ``commands/`` make spans; ``metrics/`` measures;
``sdk/`` does both faster where the SDK is OpenTelemetry's own. ``listeners`` receives pymongo's
events, ``reporting`` our own; ``tracing`` and ``other_tracers`` decide what is recorded at all.
"""
