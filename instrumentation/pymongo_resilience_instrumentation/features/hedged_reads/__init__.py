"""Reads that are sent to a second server as well, once they stay unanswered for too long.

``on_first_use`` puts the wrappers on when the first policy hedges, ``hedged_methods`` says which
reads are, ``race`` makes both tries and ends with the first answer, ``workers`` run them.
"""
