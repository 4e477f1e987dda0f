"""Writes to many documents that run in a transaction of the library's: ``atomic=True``.

``send_on_first_use`` installs the check once a policy has ``atomic``, ``atomic_methods`` takes the
calls that it holds for, ``refusals`` what cannot be such a transaction, and ``transact`` runs one
and repeats it.
"""
