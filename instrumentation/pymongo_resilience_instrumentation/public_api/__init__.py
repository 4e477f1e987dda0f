"""The public methods of pymongo: an operation begins and ends in their wrappers."""
