"""The torch operations behind an operator, as plain data, and their stored form in a plan.

An operator's float64 twin comes from the same importer and legalisation as its kernels, so both
may share an error. The torch sub-graph is cut from the exported program at a call site
(:mod:`tapml.importing.torch_subgraph_cut`) and run by torch alone
(:mod:`tapml.oracles.torch_oracle_run`); it is stored with the plan and with every suite (DESIGN.md,
Verdicts: oracles). This module does not need torch.

A suite may come from an untrusted source, and torch has operations that open files, draw random
numbers, read uninitialised memory and write in place. The operations allowed here only compute
tensors from tensors, check their indices, and give a tensor whose size follows from the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Struct

from tapml.own_operators import own_operators
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, Integer, from_wire
from tapml_targets.library import Parameter


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


ELEMENTWISE: Final = _names("""
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not
    bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min cos cosh div
    elu eq erf exp expm1
    floor floor_divide fmod ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf isnan
    leaky_relu le lerp log log10 log1p log2 logaddexp logical_and logical_not logical_or
    logical_xor lt masked_fill maximum minimum mul ne neg pow prelu reciprocal relu relu6
    remainder round rsqrt rsub selu sigmoid sign silu sin sinh softplus softshrink sqrt square
    sub tan tanh threshold trunc where
""")
"""Each element depends on the elements at its own position; shapes are broadcast."""

KEEPING: Final = _names("""
    _log_softmax _native_batch_norm_legit_no_training _softmax all amax amin any argmax argmin
    argsort cumprod cumsum linalg_vector_norm logsumexp max mean median min native_group_norm
    native_layer_norm prod sort std sum topk var var_mean
    alias cat chunk clone contiguous detach diagonal flatten flip lift_fresh_copy narrow permute
    pixel_shuffle reshape roll select select_scatter slice slice_scatter split split_with_sizes
    squeeze stack t transpose tril triu unbind unflatten unsqueeze view
    index_put isin masked_scatter scatter scatter_add scatter_reduce
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d
    avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices
    _to_copy full_like ones_like scalar_tensor to type_as zeros_like
""")
"""No result has more elements than all operands together, except for small margins."""

GROWING: Final = _names("""
    addbmm addmm addmv baddbmm bmm convolution dot linear matmul mm mv outer
    scaled_dot_product_attention
    broadcast_to constant_pad_nd expand expand_as pad repeat tile reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d
    embedding gather index index_select take
    upsample_bilinear2d upsample_bicubic2d upsample_nearest2d
    arange eye full linspace new_full new_ones new_zeros ones zeros
""")
"""The size of the result depends on shapes and integers by a rule of the operation."""

ALLOWED: Final = ELEMENTWISE | KEEPING | GROWING
"""Allowed operations (packets), in their overloads that do not write in place."""


MAX_NODES: Final = 256
MAX_ARGUMENTS: Final = 4096
_OPERATION: Final = re.compile(r"(?:aten|tapml)\.([a-z_][a-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)")
_NESTING: Final = 2


class Reference(Struct, frozen=True, tag="value"):
    """The tensor of an input or a node; `index` picks one where the node gives several."""

    name: str
    index: Integer | None = None


class Extent(Struct, frozen=True, tag="extent"):
    """An integer, with the shape symbols of the call site's entry."""

    value: Expression


class DataType(Struct, frozen=True, tag="dtype"):
    """A dtype by name; the narrow floating-point ones become float64 when the graph runs."""

    name: str


class Text(Struct, frozen=True, tag="text"):
    """A mode that is a word, such as GELU's ``tanh``."""

    value: str


Leaf: TypeAlias = bool | float | Reference | Extent | DataType | Text | None
Argument: TypeAlias = Leaf | tuple[Leaf | tuple[Leaf, ...], ...]


@dataclass(frozen=True)
class TorchInput:
    """A parameter the operator reads, with the shape it has in torch.

    Attributes
    ----------
    name
        Its name in the sub-graph.
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

    `operation` is the overload in torch's spelling, ``aten.mul.Tensor``. Floating-point scalars
    among the arguments are already rounded to the dtype they are used in.
    """

    name: str
    operation: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()


@dataclass(frozen=True)
class TorchSubgraph:
    """The torch operations that compute the same as an operator at a call site.

    `inputs` omits parameters that torch does not need; `nodes` are in execution order; `outputs`
    has one reference per written parameter, with the same elements in the same order.
    """

    inputs: tuple[TorchInput, ...]
    nodes: tuple[TorchNode, ...]
    outputs: tuple[Reference, ...]


@dataclass(frozen=True)
class TorchForm:
    """A sub-graph and the call sites that share it; usually all sites of an operator share one.

    If `subgraph` is None, `reason` says why it could not be cut.
    """

    sites: tuple[str, ...]
    subgraph: TorchSubgraph | None
    reason: str = ""


def form_at(forms: Sequence[TorchForm], site: str) -> TorchForm | None:
    """The form of a call site; if the site is not listed, the only form, or None if several."""
    only = forms[0] if len(forms) == 1 else None
    return next((form for form in forms if site in form.sites), only)


def split_operation(operation: str) -> tuple[str, str]:
    """Packet and overload of an allowed operation.

    >>> split_operation("aten.mul.Tensor")
    ('mul', 'Tensor')

    Raises
    ------
    InputError
            If it is not an ATen operation, or not a pure one.
    """
    found = _OPERATION.fullmatch(operation)
    allowed = ALLOWED if operation.startswith("aten.") else own_operators()
    if found is None or found[1] not in allowed or "__" in found[2]:
        raise InputError(
            f"the torch operation {operation[:80]!r} is not allowed in a sub-graph "
            "(pure ATen operations on tensors)"
        )
    return found[1], found[2]


def check_subgraph(subgraph: TorchSubgraph, parameters: Sequence[Parameter]) -> None:
    """Check a sub-graph against the parameters of its operator.

    Raises
    ------
    InputError
        If it is too large, holds a forbidden operation, uses what is not defined, or does not fit
        the parameters.
    ProtocolError
        If an extent is no expression.
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
            raise InputError(f"a torch sub-graph reads {each.parameter!r}, which is not an input")
        for extent in (*each.given, *each.shape):
            from_wire(extent)
        _define(each.name, known)
    count = 0
    for node in subgraph.nodes:
        split_operation(node.operation)
        arguments = (*node.arguments, *(argument for _, argument in node.keywords))
        for leaf in _leaves(arguments):
            count += 1
            if isinstance(leaf, Reference):
                _require_known(leaf, known)
            elif isinstance(leaf, Extent):
                from_wire(leaf.value)
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
