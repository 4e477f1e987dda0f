"""How we run around a method of pymongo.

``interceptor`` has the steps (enter, succeeded, failed) and runs them around sync and async
methods; ``call_interceptor`` those of a call, ``within`` those of a timeout alone. ``shield`` logs
our own errors; ``methods`` puts a function in the place of another one.
"""
