"""Reads that are sent to a second server as well, once they stay unanswered for too long.

``hedged_methods`` says which reads are, ``race`` makes both tries and ends with the first answer,
``workers`` run them.
"""

from .hedged_methods import plug_in as plug_in
