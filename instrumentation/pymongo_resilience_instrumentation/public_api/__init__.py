"""Wrappers of pymongo's public methods and constructors, where operations begin and end.

``public_methods`` creates the operation around a method. ``client_setup`` gives new clients their
listeners, budget and selector. ``statuses`` implements ``status(client)``.
"""
