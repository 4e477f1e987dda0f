"""The state that is kept for each client, without keeping the client alive.

``client_registry`` keeps any state by a client's identity: whether it is closed, its pools and
servers for gauges, and its cleanup tasks. ``client_options`` removes the library's own options from
the client's arguments.
"""
