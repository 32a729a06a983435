"""A definition without a cache of keys and values."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend import nn


class Configuration:
    """Takes anything."""

    @classmethod
    def from_dict(cls, source: dict[str, Any]) -> Configuration:
        """Nothing of it matters."""
        return cls()


class Recurrent(nn.Module):
    """Has no ``create_paged_kv_cache``."""

    def __init__(self, configuration: Configuration) -> None:
        self.head = nn.Linear(4, 4)
