"""Which server, and why not another one.

``selector`` leaves out servers with an open breaker, ``client_limits`` holds budgets
and breakers, ``fast_fail`` ends a selection early. ``selection_explained`` says why
a server was not selected.
"""
