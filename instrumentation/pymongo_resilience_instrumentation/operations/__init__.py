"""The table of public operations.

``public_operations`` names each method's operation, namespace and client; ``write_operations``
lists which operations write; ``read_commands`` which commands of a command runner can only read.
"""
