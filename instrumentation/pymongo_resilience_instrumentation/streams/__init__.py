"""Consumers of change streams that survive failures, sync and async, and their token stores.

The engine's ``stream_rules`` decide each step. The consumers use pymongo's public methods, so they
work without ``instrument()``.
"""
