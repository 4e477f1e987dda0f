"""Writes to many documents that run in a transaction of the library's: ``atomic=True``.

``send_on_first_use`` has calls looked at once a policy asks for it, ``atomic_methods`` takes those
that it holds for, ``refusals`` what cannot be such a transaction, and ``transact`` runs one and
repeats it.
"""
