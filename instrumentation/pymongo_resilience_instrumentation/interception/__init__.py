"""How a wrapper stands in for a method of pymongo."""
