"""From an exception of pymongo to the engine's facts.

``classify`` reads codes and labels, by the tables ``reasons`` and ``terminal_causes``. ``origins``
states on an error where it came from; ``outcomes`` names how a call ended; ``safe_texts`` is what
of an error may leave the process.
"""
