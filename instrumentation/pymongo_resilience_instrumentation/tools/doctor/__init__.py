"""``pymongo-resilience doctor``: connects as the application would and says what to change.

``uri`` reads the URI and asks DNS, ``probe`` tries one server on a socket of its own,
``compared_members`` compares what the servers answered, ``login`` uses a client of pymongo.
``examination`` runs them within a time limit and decides, with the classifier that
``ServerSelectionTimeoutError`` has its last sentence from.

No text holds a value of the URI but host names, option names and the replica set's name.
"""
