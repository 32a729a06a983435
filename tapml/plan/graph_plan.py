"""GraphPlan: the fused compute graph flattened into steps over values.

Target-neutral and serialisable (:mod:`tapml.plan.format`). Everything downstream - executor,
carver, compiler, session, report - reads this and never the importer's IR.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from msgspec import Struct

from tapml.plan.torch_subgraph import TorchForm
from tapml_targets.expression import Expression, Integer
from tapml_targets.library import Parameter

Lifetime: TypeAlias = Literal["weight", "state", "input", "activation"]
OutputKind: TypeAlias = Literal["value", "index", "code", "predicate", "state"]


@dataclass(frozen=True)
class Origin:
    """Where in the model an operation was written.

    Attributes
    ----------
    module_path
        Dotted path of the torch module, e.g. ``model.layers.0.self_attn``.
    source
        Innermost frame outside torch, ``file.py:line``.
    operation
        The torch operation, e.g. ``aten.mul.Tensor``.
    node
        Name of the FX node, unique within its entry.
    """

    module_path: str
    source: str
    operation: str
    node: str


@dataclass(frozen=True)
class Storage:
    """Bytes with a lifetime. A weight's or state's storage has the name of that tensor."""

    name: str
    nbytes: Expression
    lifetime: Lifetime
    alignment: Integer = 64


@dataclass(frozen=True)
class Value:
    """A tensor: a window into a storage. Shapes may contain symbols."""

    name: str
    storage: str
    byte_offset: Expression
    shape: tuple[Expression, ...]
    dtype: str


class CallStep(Struct, frozen=True, tag="call"):
    """One use of an operator: a call site.

    Attributes
    ----------
    site
        Unique within the plan: ``prefill/layers.0.mlp/fused_silu_multiply.1``.
    operator
        Key into ``GraphPlan.operators``.
    arguments
        Value names in the operator's parameter order (inputs first, outputs last).
    symbols
        Integer arguments for operator symbols that no tensor's shape binds.
    origins
        The model's operations that were fused into this call.
    layer
        Index of the decoder layer, None outside layers.
    donates
        Pairs (read value, written value) whose storage the executor may share.
    """

    site: str
    operator: str
    arguments: tuple[str, ...]
    symbols: tuple[tuple[str, Expression], ...] = ()
    origins: tuple[Origin, ...] = ()
    layer: Integer | None = None
    donates: tuple[tuple[str, str], ...] = ()


class ViewStep(Struct, frozen=True, tag="view"):
    """`result` is `source`'s storage under another shape. Costs nothing."""

    source: str
    result: str


Step: TypeAlias = CallStep | ViewStep


@dataclass(frozen=True)
class StateBinding:
    """A state tensor's value on entry and the value that replaces it after the run."""

    state: str
    before: str
    after: str


@dataclass(frozen=True)
class SymbolBounds:
    """Inclusive range of a shape symbol; `upper` is None if unbounded."""

    symbol: str
    lower: Integer
    upper: Integer | None


@dataclass(frozen=True)
class Entry:
    """An entry point of the plan: prefill, decode.

    `inputs` and `outputs` are value names in the order of the model's signature, without state.
    `values` and `storages` hold all tensors of the entry, including weights and state.
    A value that an FX node returns has the node's name, which is an identifier. Names of
    intermediate values contain a dot (``embedding.1``), so the two never collide.
    """

    name: str
    symbols: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[StateBinding, ...]
    values: dict[str, Value]
    storages: dict[str, Storage]
    steps: tuple[Step, ...]
    bounds: tuple[SymbolBounds, ...] = ()

    @property
    def calls(self) -> tuple[CallStep, ...]:
        """The call sites, in execution order."""
        return tuple(step for step in self.steps if isinstance(step, CallStep))


@dataclass(frozen=True)
class Body:
    """The unfused form of an operator: small operators over the same parameters, in order."""

    operators: dict[str, Operator]
    entry: Entry


@dataclass(frozen=True)
class Operator:
    """A unique kernel function (the paper's F), identified by structural hash.

    Attributes
    ----------
    name
        Unique within the plan.
    hash
        Structural hash of the function, hexadecimal, stable across processes.
    parameters
        Tensors in calling order; roles separate inputs from outputs.
    symbols
        Integers passed after the tensors.
    function
        The PrimFunc as TVM JSON (target-neutral, unscheduled): the compiler's input.
    script
        The same function as TVMScript.
    output_kinds
        One per written parameter.
    body
        The unfused sub-plan; None if the operator was not fused.
    variants
        Functions with the same parameters, by platform kind (``gpu``). Sort and scan need them:
        TVM's CPU form (a serial loop, a packed call) cannot be scheduled for a GPU and vice versa.
        Parameter names and the spelling of shapes may differ from `function`; order, dtypes and
        elements do not.
    torch_forms
        The equivalent torch operations, cut from the exported program; usually one form for all
        call sites. Empty if the plan was not made from a torch program.
    """

    name: str
    hash: str
    parameters: tuple[Parameter, ...]
    symbols: tuple[str, ...]
    function: str
    script: str
    output_kinds: tuple[OutputKind, ...]
    body: Body | None = None
    variants: dict[str, str] = field(default_factory=dict)
    torch_forms: tuple[TorchForm, ...] = ()

    def function_for(self, kind: str) -> str:
        """The function to compile for a platform kind, ``cpu`` or ``gpu``, as TVM JSON."""
        return self.variants.get(kind, self.function)

    @property
    def read(self) -> tuple[Parameter, ...]:
        """Parameters that are read."""
        return tuple(p for p in self.parameters if p.role != "output")

    @property
    def written(self) -> tuple[Parameter, ...]:
        """Parameters that are written."""
        return tuple(p for p in self.parameters if p.role != "input")


@dataclass(frozen=True)
class TensorSpecification:
    """Name, concrete shape and dtype of a weight or a state tensor."""

    name: str
    shape: tuple[Integer, ...]
    dtype: str


@dataclass(frozen=True)
class GraphPlan:
    """The complete model: operators, entries, and the tensors the entries share."""

    name: str
    operators: dict[str, Operator]
    entries: dict[str, Entry]
    weights: dict[str, TensorSpecification]
    state: dict[str, TensorSpecification]
    metadata: dict[str, str] = field(default_factory=dict)

    def sites_of(self, operator: str) -> tuple[CallStep, ...]:
        """All call sites of an operator, over all entries."""
        return tuple(
            call
            for entry in self.entries.values()
            for call in entry.calls
            if call.operator == operator
        )

    def origins_of(self, operator: str) -> tuple[Origin, ...]:
        """Origins of an operator's call sites, without duplicates."""
        places: dict[tuple[str, str, str], Origin] = {}
        for call in self.sites_of(operator):
            for origin in call.origins:
                place = (origin.module_path, origin.source, origin.operation)
                places.setdefault(place, origin)
        return tuple(places.values())
