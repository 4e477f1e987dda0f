"""The demonstration: one workload on four sides through the same faults, and an exact ledger.

Needs the extra ``demo``; started by ``pymongo-resilience demo``.
"""
