"""The torch operations an operator was made from, as plain data.

An operator's float64 twin comes out of the same importer and legalisation as its kernels, so both
may be wrong alike. The torch sub-graph is cut from the exported program at a call site
(:mod:`tapml.graph.torch_subgraph_cut`) and run by torch alone
(:mod:`tapml.compare.independent_run`); it travels with the plan and with every suite (DESIGN.md,
Verdicts: oracles). Nothing here needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tapml.graph.torch_subgraph_operations import ALLOWED
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression
from tapml_targets.library import Parameter

MAX_NODES: Final = 256
MAX_ARGUMENTS: Final = 4096
_OPERATION: Final = re.compile(r"aten\.([a-z_][a-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)")
_NESTING: Final = 2


@dataclass(frozen=True)
class Reference:
    """The tensor of an input or a node; `index` picks one where the node gives several."""

    name: str
    index: int | None = None


@dataclass(frozen=True)
class Extent:
    """An integer, with the shape symbols of the call site's entry."""

    value: Expression


@dataclass(frozen=True)
class DataType:
    """A dtype by name; the narrow floating-point ones become float64 when the graph runs."""

    name: str


@dataclass(frozen=True)
class Text:
    """A mode that is a word, such as GELU's ``tanh``."""

    value: str


Argument: TypeAlias = (
    "bool | float | Reference | Extent | DataType | Text | tuple[Argument, ...] | None"
)


@dataclass(frozen=True)
class TorchInput:
    """A parameter the operator reads, under the shape that torch gives it.

    Attributes
    ----------
    name
        What nodes call it.
    parameter
        The operator's parameter.
    given
        The value's shape in the plan; binds the symbols.
    shape
        Its shape in the torch program: the same elements in the same order.
    """

    name: str
    parameter: str
    given: tuple[Expression, ...]
    shape: tuple[Expression, ...]


@dataclass(frozen=True)
class TorchNode:
    """One ATen operation.

    Attributes
    ----------
    name
        Unique in the graph.
    operation
        Overload as torch spells it: ``aten.mul.Tensor``.
    arguments, keywords
        Floating-point scalars are already rounded to the dtype they are used in.
    """

    name: str
    operation: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()


@dataclass(frozen=True)
class TorchSubgraph:
    """What torch computes where the plan calls an operator.

    Attributes
    ----------
    inputs
        Parameters that are read; one the torch program does not need is left out.
    nodes
        In the order in which they run.
    outputs
        One per parameter the operator writes, in order: the same elements in the same order.
    """

    inputs: tuple[TorchInput, ...]
    nodes: tuple[TorchNode, ...]
    outputs: tuple[Reference, ...]


@dataclass(frozen=True)
class TorchForm:
    """One way in which the model writes an operator, and where; call sites usually share one.

    Attributes
    ----------
    sites
        Call sites by name.
    subgraph
        None where there is none.
    reason
        Why there is none; empty where there is one.
    """

    sites: tuple[str, ...]
    subgraph: TorchSubgraph | None
    reason: str = ""


def form_at(forms: Sequence[TorchForm], site: str) -> TorchForm | None:
    """The form of a call site; where the site is not named, the only one; else None."""
    only = forms[0] if len(forms) == 1 else None
    return next((form for form in forms if site in form.sites), only)


def split_operation(operation: str) -> tuple[str, str]:
    """Packet and overload of an operation that may run.

    >>> split_operation("aten.mul.Tensor")
    ('mul', 'Tensor')

    Raises
    ------
    InputError
        If it is no ATen operation, or one that does not only compute tensors from tensors.
    """
    found = _OPERATION.fullmatch(operation)
    if found is None or found[1] not in ALLOWED or "__" in found[2]:
        raise InputError(
            f"the torch operation {operation[:80]!r} is not among those a sub-graph may hold "
            "(pure ATen operations on tensors)"
        )
    return found[1], found[2]


def check_subgraph(subgraph: TorchSubgraph, parameters: Sequence[Parameter]) -> None:
    """Check everything that holds in a sub-graph of an operator with these parameters.

    Raises
    ------
    InputError
        If it is too large, holds a forbidden operation, uses what is not defined, or does not fit
        the parameters.
    """
    read = {p.name for p in parameters if p.role != "output"}
    written = sum(p.role != "input" for p in parameters)
    if len(subgraph.nodes) > MAX_NODES:
        raise InputError(
            f"a torch sub-graph has at most {MAX_NODES} nodes, got {len(subgraph.nodes)}"
        )
    if len(subgraph.outputs) != written:
        raise InputError(
            f"a torch sub-graph gives {len(subgraph.outputs)} tensors, its operator writes "
            f"{written}"
        )
    known: set[str] = set()
    for each in subgraph.inputs:
        if each.parameter not in read:
            raise InputError(f"a torch sub-graph reads {each.parameter!r}, which is no parameter")
        _define(each.name, known)
    count = 0
    for node in subgraph.nodes:
        split_operation(node.operation)
        arguments = (*node.arguments, *(argument for _, argument in node.keywords))
        for leaf in _leaves(arguments):
            count += 1
            if isinstance(leaf, Reference):
                _require_known(leaf, known)
        if count > MAX_ARGUMENTS:
            raise InputError(f"a torch sub-graph has at most {MAX_ARGUMENTS} arguments")
        _define(node.name, known)
    for output in subgraph.outputs:
        _require_known(output, known)


def _define(name: str, known: set[str]) -> None:
    if name in known:
        raise InputError(f"a torch sub-graph defines {name!r} twice")
    known.add(name)


def _require_known(reference: Reference, known: set[str]) -> None:
    if reference.name not in known:
        raise InputError(f"a torch sub-graph uses {reference.name!r} before it is defined")


def _leaves(arguments: Iterable[Argument], depth: int = 0) -> Iterator[Argument]:
    if depth > _NESTING:
        raise InputError("an argument of a torch sub-graph is nested too deep")
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _leaves(argument, depth + 1)
        else:
            yield argument
