"""What a model is given, beside what it was given and what it gave before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tapml.invariants.needs import Needs
from tapml.invariants.origins import Origins
from tapml.invariants.record import (
    CHANGED,
    COMPARED,
    MANY,
    ORIGIN,
    REPEATED,
    TARGET,
    WITHOUT,
    Value,
)
from tapml.invariants.summaries import bits_of, digest, digests_of, has_fractions, tensors_in


class Inputs:
    """Compares arguments of whole models by their digests.

    Parameters
    ----------
    needs
        As of :class:`~tapml.invariants.variables.Variables`.

    Attributes
    ----------
    origins
        Where targets come from.
    picks
        Takes rows that are picked by an index; None if nobody asks for them.
    """

    def __init__(self, needs: Needs | None) -> None:
        self.origins = Origins(needs)
        self.picks = self.origins.picked if needs is None or needs.origins else None
        self._off = needs is not None and not needs.inputs
        self._stale = needs is not None and not needs.fresh
        # That an input differed once is all that a whole run is asked.
        self._once = needs is not None and not needs.targets
        self._first: WeakKeyDictionary[torch.nn.Module, tuple[int, _Marks]] = WeakKeyDictionary()
        self._changes = 0
        self._targets: dict[str, tuple[int, _Marks, int]] = {}
        self._step = -1
        self._seen: WeakKeyDictionary[torch.nn.Module, set[tuple[str, ...]]] = WeakKeyDictionary()
        self._results: WeakKeyDictionary[torch.nn.Module, set[str]] = WeakKeyDictionary()
        self._without: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()

    def given(self, module: torch.nn.Module, args: tuple[Any, ...], step: int) -> dict[str, Value]:
        """The fields of a call: none in evaluation, and none where there was no call before."""
        if not module.training or not torch.is_grad_enabled():
            return {}
        self.origins.given(args)
        fresh = {} if self._stale else self._fresh(module, args, step)
        return fresh if self._off else {**fresh, **self._beside(module, args, step)}

    def _fresh(self, module: torch.nn.Module, args: Any, step: int) -> dict[str, Value]:
        if self._once and self._changes:
            return {}
        before = self._first.get(module)
        if before is not None and before[0] == step:
            return {}
        now = _marks(args)
        self._first[module] = step, now
        if before is None or not now:
            return {}
        self._changes += now != before[1]
        return {CHANGED: now != before[1]}

    def target(self, loss: str, args: Sequence[Any], step: int) -> dict[str, Value]:
        """The fields of a call of a loss with a target as its second argument."""
        target = args[1] if len(args) > 1 else None
        if not isinstance(target, torch.Tensor) or not torch.is_grad_enabled():
            return {}
        origin = self.origins.of(target)
        fields: dict[str, Value] = {ORIGIN: origin} if origin else {}
        return {**fields, **self._renewed(loss, target, step)}

    def _renewed(self, loss: str, target: torch.Tensor, step: int) -> dict[str, Value]:
        """Whether a target of numbers differs from that of the step before."""
        known = self._targets.get(loss)
        unseen = self._stale or loss not in COMPARED or (known and known[0] == step)
        if unseen or not has_fractions(target):
            return {}
        now = _marks((target,))
        self._targets[loss] = step, now, self._changes
        if known is None or known[2] == self._changes:
            return {}
        return {TARGET: now != known[1]}

    def _beside(self, module: torch.nn.Module, args: Any, step: int) -> dict[str, Value]:
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


_Marks = tuple[object, ...]


def _marks(value: Any) -> _Marks:
    """What differs where tensors do; a sum does not see their order."""
    marks: list[object] = []
    for each in tensors_in(value):
        bits = bits_of(each)
        marks.append(digest(each) if bits is None else (each.shape, int(bits.sum().item())))
    return tuple(marks)
