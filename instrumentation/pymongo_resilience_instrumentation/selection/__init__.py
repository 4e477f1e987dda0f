"""Decides which servers an operation may use, and explains why others were not selected.

``client_limits`` contains budgets and circuit breakers, and excludes servers whose breaker is open.
``fast_fail`` ends a selection early. ``selection_explained`` explains a selection.
"""
