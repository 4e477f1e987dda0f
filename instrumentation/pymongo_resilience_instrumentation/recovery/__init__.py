"""Makes operations continue sooner after a failure.

Monitors are woken after network errors, and check a lost server more often while an operation waits
for it. Attempts that wait for a replaced primary are interrupted. Connections to a silent host are
closed.
"""
