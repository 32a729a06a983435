"""An entry of a plan as one device call: parameters, intermediates that share memory, calls.

Views are free: each value is a window into a parameter or an intermediate. Intermediates whose
lifetimes do not overlap share memory, which leaves a decoder with a handful of buffers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, TensorSpecification
from tapml_targets.errors import CompileError
from tapml_targets.expression import Expression, evaluate, product, symbols_of
from tapml_targets.library import (
    EntryCall,
    EntryProgram,
    EntryStorage,
    EntryValue,
    Parameter,
    Role,
)

# Every symbol's value for comparing symbolic sizes when memory is shared.
_TYPICAL_EXTENT = 128


def entry_program(plan: GraphPlan, entry: Entry) -> EntryProgram:
    """Turn an entry into a program; see :func:`tapml.compiler.link.link_entries`.

    Raises
    ------
    CompileError
        If the entry returns a tensor that it does not compute, or one tensor twice.
    """
    placed = _parameters(plan, entry)
    intermediates = _share(entry, placed.homes.keys())
    homes = {**placed.homes, **intermediates.homes}
    used = {name for call in entry.calls for name in call.arguments}
    given = {e for p in placed.parameters for e in p.shape if isinstance(e, str)}
    return EntryProgram(
        name=entry.name,
        parameters=tuple(placed.parameters),
        storages=tuple(
            EntryStorage(f"scratch:{number}", size.expression)
            for number, size in enumerate(intermediates.sizes)
        ),
        values=tuple(
            EntryValue(v.name, homes[v.storage], v.byte_offset, v.shape, v.dtype)
            for v in entry.values.values()
            if v.name in used
        ),
        calls=tuple(EntryCall(c.operator, c.arguments, c.symbols) for c in entry.calls),
        symbols=tuple(symbol for symbol in entry.symbols if symbol not in given),
    )


@dataclass
class _Parameters:
    """An entry's parameters, and the plan's storages whose memory they are."""

    parameters: list[Parameter] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)

    def add(
        self, name: str, shape: tuple[Expression, ...], dtype: str, role: Role, storage: str
    ) -> None:
        if storage in self.homes:
            raise CompileError(
                f"{name!r} and {self.homes[storage]!r} are the same tensor, so one call cannot "
                "write both; keep this entry's operators as single calls"
            )
        self.parameters.append(Parameter(name, shape, dtype, role))
        self.homes[storage] = name


def _parameters(plan: GraphPlan, entry: Entry) -> _Parameters:
    placed = _Parameters()
    for name in entry.inputs:
        value = entry.values[name]
        placed.add(f"input:{name}", value.shape, value.dtype, "input", value.storage)
    for name in entry.outputs:
        _add_written(placed, entry, f"output:{name}", name)
    for binding in entry.state:
        _add_shared(placed, f"state:{binding.state}", plan.state[binding.state], entry)
    for binding in entry.state:
        if entry.values[binding.after].storage != entry.values[binding.before].storage:
            _add_written(placed, entry, f"next:{binding.state}", binding.after)
    read = {entry.values[name].storage for call in entry.calls for name in call.arguments}
    for storage in entry.storages.values():
        if storage.lifetime == "weight" and storage.name in read:
            _add_shared(placed, f"weight:{storage.name}", plan.weights[storage.name], entry)
    return placed


def _add_written(placed: _Parameters, entry: Entry, name: str, value_name: str) -> None:
    value = entry.values[value_name]
    if value.byte_offset != 0 or entry.storages[value.storage].lifetime != "activation":
        raise CompileError(
            f"entry {entry.name!r}: {name!r} is part of another tensor, not one that an operator "
            "writes; keep this entry's operators as single calls"
        )
    placed.add(name, value.shape, value.dtype, "output", value.storage)


def _add_shared(
    placed: _Parameters, name: str, specification: TensorSpecification, entry: Entry
) -> None:
    """Add a weight or state tensor; its storage in the entry has its name."""
    for key, storage in entry.storages.items():
        if storage.name == specification.name and storage.lifetime in ("weight", "state"):
            shape: tuple[Expression, ...] = specification.shape
            placed.add(name, shape, specification.dtype, "input", key)
            return
    raise CompileError(f"entry {entry.name!r} has no storage for {name!r}")


@dataclass
class _Size:
    """The maximum of several sizes: for each symbolic product its largest factor."""

    multiples: dict[Expression, int] = field(default_factory=dict)

    def include(self, size: Expression) -> None:
        """Grow to at least `size`."""
        unit, factor = _multiple(size)
        self.multiples[unit] = max(factor, self.multiples.get(unit, 0))

    @property
    def expression(self) -> Expression:
        """The size as a short expression."""
        result: Expression | None = None
        for unit, factor in self.multiples.items():
            term = product((factor, unit))
            result = term if result is None else ("max", result, term)
        return 0 if result is None else result


@dataclass
class _Intermediates:
    """Sizes of the shared memories, and the memory of each of the plan's storages."""

    sizes: list[_Size] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)


def _share(entry: Entry, outside: Collection[str]) -> _Intermediates:
    """Assign storages with disjoint lifetimes to shared memory, in order of first use, best fit."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, call in enumerate(entry.calls):
        for name in call.arguments:
            storage = entry.values[name].storage
            if storage not in outside:
                first.setdefault(storage, position)
                last[storage] = position
    result = _Intermediates()
    free: list[int] = []
    taken: dict[str, int] = {}
    ending: dict[int, list[str]] = {}
    for storage, position in last.items():
        ending.setdefault(position, []).append(storage)
    for position, call in enumerate(entry.calls):
        for storage in _beginning(entry, call, position, first):
            slot = _best_fit(entry.storages[storage].nbytes, free, result.sizes)
            if slot is None:
                slot = len(result.sizes)
                result.sizes.append(_Size())
            else:
                free.remove(slot)
            result.sizes[slot].include(entry.storages[storage].nbytes)
            taken[storage] = slot
            result.homes[storage] = f"scratch:{slot}"
        # Inputs of a call stay in place until it ends.
        free.extend(taken[storage] for storage in ending.get(position, ()))
    return result


def _beginning(entry: Entry, call: CallStep, position: int, first: dict[str, int]) -> list[str]:
    storages = (entry.values[name].storage for name in call.arguments)
    return list(dict.fromkeys(s for s in storages if first.get(s) == position))


def _best_fit(size: Expression, free: list[int], sizes: list[_Size]) -> int | None:
    """The smallest free memory that is large enough, else the one that must grow least."""
    wanted = _typical(size)
    fitting = [slot for slot in free if _typical(sizes[slot].expression) >= wanted]
    if fitting:
        return min(fitting, key=lambda slot: _typical(sizes[slot].expression))
    return max(free, key=lambda slot: _typical(sizes[slot].expression), default=None)


def _typical(size: Expression) -> int:
    return evaluate(size, dict.fromkeys(symbols_of(size), _TYPICAL_EXTENT))


def _multiple(size: Expression) -> tuple[Expression, int]:
    match size:
        case int():
            return 1, size
        case ("mul", int(factor), unit) | ("mul", unit, int(factor)):
            return unit, factor
    return size, 1
