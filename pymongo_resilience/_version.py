"""The version of the distribution, once."""

__version__ = "0.1.0"
