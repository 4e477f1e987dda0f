"""The table of public operations.

``public`` names each method's operation, namespace and client; ``changes`` lists which operations
write; ``read_commands`` which commands of a command runner can only read.
"""
