"""The registry of definitions."""

from .model import MODELS

__all__ = ["MODELS"]
