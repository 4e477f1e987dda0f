"""Consumers of change streams that survive: the public ones, for threads and for tasks, over the
engine's ``stream_rules``; and where they store their tokens. They use pymongo's public methods, and
need no ``instrument()``."""
