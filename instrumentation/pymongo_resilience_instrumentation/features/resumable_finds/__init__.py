"""Finds that are made anew from the last document once their cursor is lost.

``rules`` says which finds can be, what is sent for them, and which failures resume one; ``scan``
notes how far a cursor has come, and sends the find.
"""

from .scan import plug_in as plug_in
