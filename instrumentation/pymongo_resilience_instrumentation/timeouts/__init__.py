"""Who says how long: waits cut to the deadline, maxTimeMS, OperationTimeoutError."""
