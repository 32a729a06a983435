"""What tells cheaply that the variables of a run are those of the step before."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import Any

import torch


class Structure:
    """Which parameters, buffers and parts models have, and what their optimizers hold."""

    def __init__(
        self, models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
    ) -> None:
        self._tops = _identities(models, optimizers)
        parts = [part for model in models for part in model.modules()]
        tables: list[dict[str, Any]] = []
        for part in parts:
            tables += part._parameters, part._buffers, part._modules
        self._tables, self._sizes = tables, list(map(len, tables))
        # A scripted module builds its tables again at every access.
        self._plain = all(isinstance(table, dict) for table in tables)
        entries = [(table, name, value) for table in tables for name, value in table.items()]
        self._holders = [table for table, _, _ in entries]
        self._names = [name for _, name, _ in entries]
        self._entries = [value for _, _, value in entries]
        self._held = _held(optimizers)

    def holds(self, models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]) -> bool:
        """Whether all is as it was."""
        return (
            self._plain
            and self._tops == _identities(models, optimizers)
            and self._held == _held(optimizers)
            and self._sizes == list(map(len, self._tables))
            and all(map(is_, map(dict.get, self._holders, self._names), self._entries))
        )


def _identities(*parts: Iterable[object]) -> list[int]:
    return [id(each) for group in parts for each in group]


def _held(optimizers: list[torch.optim.Optimizer]) -> list[int]:
    return [
        id(each)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for each in group["params"]
    ]
