"""The table of public operations: their names in telemetry, their namespaces, reads and writes."""
