"""Tests of the engine: no server, no driver, no real time."""
