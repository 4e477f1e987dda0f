"""Which server, and why not another one.

``client_limits`` holds budgets and breakers, and leaves out servers with an open breaker,
``fast_fail`` ends a selection early. ``selection_explained`` says why a server was not selected.
"""
