"""Policies of single operations: by block of code, by binding, and by namespace.

All other operations follow the options of ``config``.
"""
