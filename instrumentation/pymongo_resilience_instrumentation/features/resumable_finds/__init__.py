"""Resumable finds: after a lost cursor, the find is sent again from the last document.

``rules`` decides which finds can be resumed and after which failures. ``scan`` tracks the position
of a cursor and sends the find.
"""

from .scan import plug_in as plug_in
