"""What observes operations, and what pymongo reports to listeners; names are in ``semconv``.

``setup`` makes the ``observers`` and calls them. ``operation_spans``, ``transaction_spans`` and
``command_spans`` record spans, ``metrics`` and ``server_gauges`` measure. ``listeners`` receives
what pymongo's commands and monitors report, ``pool_metrics`` the events of its pools.
``client_tracing`` reads what a client asks for, and who else records.
"""
