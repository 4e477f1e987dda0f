"""pymongo's retry loop, whose attempts the engine's rules repeat.

Whether and when is decided in ``pymongo_resilience/rules/retry_rules.py``; here an attempt is
sent, its failure described, and the next one prepared. ``deprioritized`` avoids the servers that
failed.
"""
