"""Writes to many documents that pin _id, sent as writes to one document, which may be repeated.

``pinned_ids`` decides by the filter, and ``rewrite`` sends; ``bulk_results`` gives the result the
form of the call that was made.
"""
