"""Reduces static extents: a smaller operator, recompiled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tapml.compiler.compiler import Compiler
from tapml.plan.graph_plan import Operator
from tapml.reduce.device import ReopeningDevice
from tapml.reduce.extent_classes import ExtentClass, extent_classes, with_extent
from tapml.reduce.extents import smallest
from tapml.reduce.search import Search
from tapml.reduce.slices import sliced, window_starts
from tapml.reduce.trials import Candidate, Trials
from tapml.verdicts.policy import Policy
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tapml_targets.target import Target

# A compilation takes seconds: extents are doubled from this value on, and then bisected.
_LINEAR = 1


class Recompiler:
    """Compiles smaller operators for a device; `count` is the number of trials."""

    def __init__(self, compiler: Compiler, policy: Policy, device: ReopeningDevice) -> None:
        self._compiler = compiler
        self._policy = policy
        self._device = device
        self.count = 0

    def compiled_alike(self, operator: Operator, library: Library) -> bool:
        """Whether `library` is this compiler's output for the operator."""
        try:
            made = self._compile(operator)
        except CompileError:
            return False
        return made.modules == library.modules and made.operators == library.operators

    def shrink(self, search: Search) -> None:
        """Reduce every static extent to the smallest value that preserves the failure."""
        done: set[tuple[tuple[int, int], ...]] = set()
        while True:
            classes = extent_classes(search.trials.operator)
            chosen = next((each for each in classes if each.axes not in done), None)
            if chosen is None:
                return
            done.add(chosen.axes)
            attempt = partial(self._attempt, search, chosen.axes)
            smallest(chosen.extent, attempt, linear=_LINEAR)

    def _attempt(self, search: Search, axes: tuple[tuple[int, int], ...], extent: int) -> bool:
        """Compile the best operator so far with an extent replaced, and run it."""
        operator = search.trials.operator
        chosen = next(each for each in extent_classes(operator) if each.axes == axes)
        places = ", ".join(f"{operator.parameters[p].name}.{axis}" for p, axis in axes)
        doing = f"{places} = {extent}, recompiled"
        smaller = with_extent(operator, chosen, extent)
        try:
            library = self._compile(smaller)
            trials = Trials(smaller, library, self._policy, self._device)
        except CompileError:
            return False
        self.count += 1
        return any(
            search.attempt(candidate, doing, trials)
            for candidate in _candidates(search, chosen, extent)
        )

    def _compile(self, operator: Operator) -> Library:
        description = self._device.description
        return self._compiler.compile(
            operator, Target(description.platform, limits=description.limits)
        )


def _candidates(search: Search, chosen: ExtentClass, extent: int) -> Iterator[Candidate]:
    operator, best = search.trials.operator, search.best
    read = [index for index, p in enumerate(operator.parameters) if p.role != "output"]
    written = [index for index, p in enumerate(operator.parameters) if p.role != "input"]
    inputs = [(read.index(p), axis) for p, axis in chosen.axes if p in read]
    outputs = [(written.index(p), axis) for p, axis in chosen.axes if p in written]
    shapes = [
        tuple(
            extent if (position, axis) in inputs else size for axis, size in enumerate(array.shape)
        )
        for position, array in enumerate(best.inputs)
    ]
    for start in window_starts(search.result, outputs, chosen.extent, extent):
        windows = dict.fromkeys(inputs, start)
        smaller = sliced(operator, best.inputs, shapes, windows, [(chosen.extent, extent)])
        if smaller is not None:
            yield Candidate(smaller, best.symbols)
