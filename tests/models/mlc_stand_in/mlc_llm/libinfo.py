"""The version, as the real file says it."""

__version__ = "0.1.dev0"
