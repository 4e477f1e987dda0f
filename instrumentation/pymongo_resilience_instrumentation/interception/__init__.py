"""How we run around a method of pymongo.

``interceptor`` has the steps (enter, succeeded, failed) and runs them around sync and async
methods, with wrapt's wrappers or a subclass.
"""
