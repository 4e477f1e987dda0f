"""How we run around a method of pymongo.

``interceptor`` has the steps (enter, succeeded, failed) and runs them around sync and async
methods; ``methods`` are wrapt's wrappers and the subclass; ``steps`` runs what waits several times.
"""
