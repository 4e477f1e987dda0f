"""Writes to many documents that run in a transaction of the library's: ``atomic=True``."""
