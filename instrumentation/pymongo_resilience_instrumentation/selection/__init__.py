"""Which server, and why not another one. The rules are the engine's.

``selector`` chooses by load, ``breakers`` and ``load_shedding`` refuse, ``fast_fail`` ends
a selection that waits in vain. ``explanations``, ``selection_errors`` and ``diagnosis`` say why
a server was not selected; ``descriptions`` converts pymongo's descriptions.
"""
