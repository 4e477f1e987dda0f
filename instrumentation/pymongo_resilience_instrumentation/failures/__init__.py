"""Converts exceptions of pymongo to the engine's facts.

``classify`` reads codes and labels, using the table in ``reasons``. ``causes`` finds the likely
cause of a failed selection, and whether waiting can help. ``error_texts`` adds facts to error
messages and decides which texts may be exported.
"""
