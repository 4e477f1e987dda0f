"""What is kept for each client, which is never held alive.

``client_registry`` knows its servers, connections and round-trip times, for gauges;
``client_options`` takes our options out of its arguments. ``by_client`` keeps anything by a
client's identity: its retry budget, and whether it is closed; ``background_work`` what its
background task is to do.
"""
