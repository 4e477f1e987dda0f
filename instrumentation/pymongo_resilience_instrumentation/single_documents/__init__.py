"""Writes to many documents that pin _id, sent as writes to one document, which may be repeated."""
