"""Writes to many documents that run in a transaction of the library's: ``atomic=True``.

``atomic_methods`` takes the calls that it holds for, ``refusals`` what cannot be such a
transaction, and ``transact`` runs one and repeats it.
"""
