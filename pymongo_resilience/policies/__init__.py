"""What holds for one operation: by its block of code, its binding, its namespace.

The options of ``pymongo_resilience/options`` hold for all others.
"""
