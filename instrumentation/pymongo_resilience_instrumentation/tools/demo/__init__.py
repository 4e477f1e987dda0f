"""The demonstration: four sides run one workload through the same faults, and a ledger compares
what was acknowledged with what is stored.

Needs the extra ``demo``. Start it with ``pymongo-resilience demo``.
"""
