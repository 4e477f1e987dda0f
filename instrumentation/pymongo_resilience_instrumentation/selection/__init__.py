"""Which server, and why not another one. The rules are the engine's.

``selector`` chooses by load, ``breaker_registry`` and ``shedding_registry`` refuse, ``fast_fail``
ends a selection early. ``explanations`` says why a server was not selected; ``conversions``
converts pymongo's descriptions.
"""
