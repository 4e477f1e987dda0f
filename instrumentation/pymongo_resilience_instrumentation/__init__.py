"""The half of pymongo-resilience that acts and shows; the engine is ``pymongo_resilience``."""
