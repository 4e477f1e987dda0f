"""Hedged reads: a read that stays unanswered for too long is also sent to a second server.

``hedged_methods`` decides which reads are hedged, ``race`` runs both tries and takes the first
answer, and ``workers`` provides their threads or tasks.
"""

from .hedged_methods import plug_in as plug_in
