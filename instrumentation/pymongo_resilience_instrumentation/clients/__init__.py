"""What is kept for each client, which is never held alive.

``registry`` and ``pool_state`` know its servers, connections and round-trip times, for gauges;
``budgets`` its retry budget; ``closings`` whether it is closed, which ends waits. ``options`` takes
our options out of its arguments, ``by_client`` keeps anything by a client's identity.
"""
