"""Binds the shape symbols of an entry, so that every extent is a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tapml.execute.arrays import Array
from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, Lifetime, ViewStep
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape, evaluate


@dataclass(frozen=True)
class BoundValue:
    """A tensor of a bound entry; `index` is its position in ``Entry.values``."""

    name: str
    index: int
    storage: str
    byte_offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return dtype(self.dtype).nbytes(prod(self.shape))


@dataclass(frozen=True)
class BoundStorage:
    """Bytes of a bound entry; `dense` if a single tensor fills them."""

    name: str
    nbytes: int
    lifetime: Lifetime
    dense: bool


@dataclass(frozen=True)
class BoundCall:
    """A call site with its tensors and integers.

    Attributes
    ----------
    position
        Index among the entry's call sites in execution order.
    step
        The plan's step.
    arguments
        Indices of values in the operator's parameter order.
    reads, writes
        The input and output arguments; a tensor that is read and written is in both.
    symbols
        Values of the integer arguments.
    """

    position: int
    step: CallStep
    arguments: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    symbols: tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class BoundEntry:
    """An entry for one set of shapes; hashed by identity.

    Attributes
    ----------
    entry
        The plan's entry.
    symbols
        Value of every shape symbol.
    values, storages
        By name, in the plan's order.
    calls
        The call sites in execution order.
    before, after
        State name to the names of its values before and after the run.
    """

    entry: Entry
    symbols: Mapping[str, int]
    values: dict[str, BoundValue]
    storages: dict[str, BoundStorage]
    by_index: tuple[BoundValue, ...]
    calls: tuple[BoundCall, ...]
    before: dict[str, str]
    after: dict[str, str]

    def storage_of(self, index: int) -> str:
        """Name of the storage that holds a value."""
        return self.by_index[index].storage


def bind_symbols(entry: Entry, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Check a run's inputs against an entry and bind its shape symbols.

    Raises
    ------
    InputError
        If an input is missing, unknown, or has another shape or dtype; the message names it.
    """
    missing = [name for name in entry.inputs if name not in inputs]
    unknown = [name for name in inputs if name not in entry.inputs]
    if missing or unknown:
        raise InputError(
            f"entry {entry.name} takes the inputs {', '.join(entry.inputs)}; "
            + "; ".join(
                f"{what}: {', '.join(names)}"
                for what, names in (("missing", missing), ("unknown", unknown))
                if names
            )
        )
    symbols: dict[str, int] = {}
    for name in entry.inputs:
        value, array = entry.values[name], inputs[name]
        bind_shape(value.shape, array.shape, symbols, f"input {name} of entry {entry.name}")
        expected = dtype(value.dtype).numpy_name
        if array.dtype.name != expected:
            raise InputError(
                f"input {name} of entry {entry.name}: expected dtype {expected}, "
                f"got {array.dtype.name}"
            )
    unbound = [symbol for symbol in entry.symbols if symbol not in symbols]
    if unbound:
        raise InputError(
            f"no input's shape binds {', '.join(unbound)} of entry {entry.name}: "
            "each symbol must be a dimension of an input"
        )
    for bounds in entry.bounds:
        length = symbols[bounds.symbol]
        if length < bounds.lower or (bounds.upper is not None and length > bounds.upper):
            upper = "or more" if bounds.upper is None else f"to {bounds.upper}"
            raise InputError(
                f"entry {entry.name} takes {bounds.symbol} from {bounds.lower} {upper}, and the "
                f"inputs have {bounds.symbol} = {length}"
            )
    return symbols


def bind_entry(plan: GraphPlan, name: str, symbols: Mapping[str, int]) -> BoundEntry:
    """Evaluate every extent and offset of an entry.

    Raises
    ------
    InputError
        If the plan has no such entry, or a tensor is not inside its storage.
    """
    entry = entry_of(plan, name)
    check_views(entry)
    values: dict[str, BoundValue] = {}
    for index, value in enumerate(entry.values.values()):
        values[value.name] = BoundValue(
            name=value.name,
            index=index,
            storage=value.storage,
            byte_offset=evaluate(value.byte_offset, symbols),
            shape=tuple(evaluate(extent, symbols) for extent in value.shape),
            dtype=value.dtype,
        )
    storages: dict[str, BoundStorage] = {}
    filled = {(v.storage, v.nbytes) for v in values.values() if v.byte_offset == 0}
    for storage in entry.storages.values():
        nbytes = evaluate(storage.nbytes, symbols)
        storages[storage.name] = BoundStorage(
            storage.name, nbytes, storage.lifetime, (storage.name, nbytes) in filled
        )
    for bound in values.values():
        room = storages[bound.storage].nbytes
        if bound.byte_offset < 0 or bound.byte_offset + bound.nbytes > room:
            raise InputError(
                f"value {bound.name} of entry {name} ends at byte "
                f"{bound.byte_offset + bound.nbytes} of storage {bound.storage}, which has {room}"
            )
    before = {binding.state: binding.before for binding in entry.state}
    after = {binding.state: binding.after for binding in entry.state}
    for value_name in after.values():
        if values[value_name].byte_offset:
            raise InputError(f"state value {value_name} of entry {name} must start its storage")
    return BoundEntry(
        entry=entry,
        symbols=dict(symbols),
        values=values,
        storages=storages,
        by_index=tuple(values.values()),
        calls=_bind_calls(plan, entry, values, symbols),
        before=before,
        after=after,
    )


def entry_of(plan: GraphPlan, name: str) -> Entry:
    """Look up an entry, or raise :class:`InputError` naming the existing ones."""
    try:
        return plan.entries[name]
    except KeyError:
        known = ", ".join(plan.entries) or "none"
        raise InputError(f"{plan.name} has no entry {name!r}; known entries: {known}") from None


def check_views(entry: Entry) -> None:
    """Raise :class:`InputError` if a view does not share its source's storage."""
    for step in entry.steps:
        if isinstance(step, ViewStep):
            source, result = entry.values[step.source], entry.values[step.result]
            if source.storage != result.storage:
                raise InputError(
                    f"view {step.result} of entry {entry.name} is in {result.storage}, "
                    f"its source {step.source} in {source.storage}"
                )


def _bind_calls(
    plan: GraphPlan,
    entry: Entry,
    values: Mapping[str, BoundValue],
    symbols: Mapping[str, int],
) -> tuple[BoundCall, ...]:
    calls: list[BoundCall] = []
    for position, step in enumerate(entry.calls):
        parameters = plan.operators[step.operator].parameters
        if len(parameters) != len(step.arguments):
            raise InputError(
                f"call site {step.site} passes {len(step.arguments)} tensors, "
                f"operator {step.operator} takes {len(parameters)}"
            )
        arguments = tuple(values[name].index for name in step.arguments)
        pairs: Sequence[tuple[int, str]] = [
            (index, parameter.role) for index, parameter in zip(arguments, parameters, strict=True)
        ]
        calls.append(
            BoundCall(
                position=position,
                step=step,
                arguments=arguments,
                reads=tuple(index for index, role in pairs if role != "output"),
                writes=tuple(index for index, role in pairs if role != "input"),
                symbols=tuple((name, evaluate(value, symbols)) for name, value in step.symbols),
            )
        )
    return tuple(calls)
