"""The public methods of pymongo and its constructors: an operation begins and ends here.

``public_methods`` makes the operation around a method; ``client_setup`` gives a new client its
listeners, budget and selector; ``statuses`` is ``status(client)``.
"""
