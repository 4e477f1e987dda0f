"""Which server, and why not another one. The rules are the engine's.

``selector`` chooses by load, ``breaker_registry`` and ``shedding_registry`` refuse, ``fast_fail``
ends a selection early. ``server_verdicts``, ``selection_errors`` and ``diagnosis`` explain why a
server was not selected; ``conversions`` converts pymongo's descriptions.
"""
