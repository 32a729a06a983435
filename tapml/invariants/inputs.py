"""What a model is given, beside what it was given and what it gave before."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from tapml.invariants.needs import Needs
from tapml.invariants.record import MANY, REPEATED, WITHOUT, Value
from tapml.invariants.summaries import digests_of


class Inputs:
    """Compares arguments of whole models by their digests.

    Parameters
    ----------
    needs
        As of :class:`~tapml.invariants.variables.Variables`.
    """

    def __init__(self, needs: Needs | None) -> None:
        self._off = needs is not None and not needs.inputs
        self._step = -1
        self._seen: WeakKeyDictionary[torch.nn.Module, set[tuple[str, ...]]] = WeakKeyDictionary()
        self._results: WeakKeyDictionary[torch.nn.Module, set[str]] = WeakKeyDictionary()
        self._without: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()

    def given(self, module: torch.nn.Module, args: tuple[Any, ...], step: int) -> dict[str, Value]:
        """The fields of a call: none in evaluation, and none where there was no call before."""
        if self._off or not module.training or not torch.is_grad_enabled():
            return {}
        if step != self._step:
            self._step = step
            self._seen.clear()
        now = tuple(digests_of(args))
        if not any(now):
            return {}
        fields: dict[str, Value] = {}
        seen = self._seen.setdefault(module, set())
        if seen:
            fields[REPEATED] = now in seen
        seen.add(now)
        results = self._results.get(module)
        if results is not None:
            without = min(self._without.get(module, 0) + 1, MANY) if results.isdisjoint(now) else 0
            fields[WITHOUT] = self._without[module] = without
        return fields

    def gave(self, module: torch.nn.Module, result: Any) -> None:
        """A call returned; a model with a state gives it beside its result."""
        several = isinstance(result, tuple | list | dict) and len(result) > 1
        if self._off or not several or not module.training or not torch.is_grad_enabled():
            return
        found = {each for each in digests_of(result) if each}
        self._results[module] = found
