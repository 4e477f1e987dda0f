"""Hypothesis for this folder: no wall-clock limit per example, no database of examples on disk."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None, database=None, max_examples=200)
settings.load_profile("unit")
