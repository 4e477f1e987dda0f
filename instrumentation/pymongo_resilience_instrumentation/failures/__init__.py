"""From an exception of pymongo to the engine's Failure: codes, labels, reasons, origins."""
