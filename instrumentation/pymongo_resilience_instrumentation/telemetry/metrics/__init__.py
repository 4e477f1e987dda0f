"""Metrics: what operations and the driver do as it happens; servers and pools when asked."""
