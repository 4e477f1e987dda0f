"""``atomic=True``: writes to many documents run in a transaction that the library starts."""

from .atomic_methods import plug_in as plug_in
