"""The demonstration: four processes run one workload through the same faults, and a ledger compares
the acknowledged writes with the stored ones.

Needs the extra ``demo``. Start it with ``pymongo-resilience demo``.
"""
