"""Writes to many documents that run in a transaction of the library's: ``atomic=True``."""

from .atomic_methods import plug_in as plug_in
