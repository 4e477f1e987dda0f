"""From an exception of pymongo to the engine's facts.

``classify`` reads codes and labels, by the table ``reasons``. ``causes`` finds the likely and the
terminal cause of a failed selection. ``error_texts`` is what an error states to people.
"""
