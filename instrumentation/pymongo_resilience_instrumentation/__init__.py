"""The part of pymongo-resilience that instruments pymongo. The engine, which decides, is
``pymongo_resilience``.
"""
