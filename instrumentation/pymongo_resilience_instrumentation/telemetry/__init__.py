"""Operation and command spans, metrics, pymongo's listeners, the names of the contract."""
