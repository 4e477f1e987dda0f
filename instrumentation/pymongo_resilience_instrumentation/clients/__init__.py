"""What is kept for each client, which is never held alive.

``client_registry`` keeps anything by a client's identity, and knows whether it is closed, its
servers, connections and round-trip times, for gauges; ``client_options`` takes our options out of
its arguments.
"""
