"""Servers that keep failing are left alone for a time."""
