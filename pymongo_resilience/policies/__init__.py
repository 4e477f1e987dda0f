"""What holds for one operation: by its block of code, its binding, its namespace.

The options of ``config`` hold for all others.
"""
