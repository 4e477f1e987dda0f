"""How we run around a method of pymongo.

``interceptor`` has the steps (enter, succeeded, failed) and runs them around sync and async
methods; ``call_interceptor`` those of a call, ``method_in_context`` those of a timeout alone.
``methods`` are wrapt's wrappers and the subclass; ``steps`` runs what waits several times.
"""
