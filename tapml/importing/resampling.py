"""Images, rows and volumes of another size, written out as gathers by constant places.

Where a size is a number, the places and weights of an axis are computed here as PyTorch computes
them, in float32, and become constants of the program. A kernel that computes them itself rounds
otherwise, and some platforms have no 64-bit integers to round to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from tapml.importing.calls_beside import calls_beside

_aten: Final = torch.ops.aten
_NEAREST: Final = (
    _aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d,
)  # fmt: skip
_EXACT: Final = (
    _aten._upsample_nearest_exact1d, _aten._upsample_nearest_exact2d,
    _aten._upsample_nearest_exact3d,
)  # fmt: skip
_LINEAR: Final = (
    _aten.upsample_linear1d, _aten.upsample_bilinear2d, _aten.upsample_trilinear3d,
)  # fmt: skip
_CUBIC: Final = (_aten.upsample_bicubic2d,)
_SMOOTH: Final = (_aten._upsample_bilinear2d_aa, _aten._upsample_bicubic2d_aa)
_PACKETS: Final = (*_NEAREST, *_EXACT, *_LINEAR, *_CUBIC, *_SMOOTH)
# Of PyTorch's bicubic kernel, and of the one that smooths.
_CUBIC_A: Final = -0.75
_SMOOTH_CUBIC_A: Final = -0.5
_CUBIC_SMOOTH: Final = (_aten._upsample_bicubic2d_aa,)
_Taps = list[tuple[NDArray[np.int64], NDArray[Any] | None]]


def kept(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Entries for a table of decompositions that leave these operations whole."""
    found: dict[Any, Callable[..., Any]] = {}
    for packet in _PACKETS:
        for name in ("vec", "default"):
            operation = getattr(packet, name)
            found[operation] = _unless_static(packet, table.get(operation))
    return found


def _unless_static(packet: Any, other: Callable[..., Any] | None) -> Callable[..., Any]:
    def decomposed(operand: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if other is None or _is_static(packet, operand):
            return NotImplemented
        return other(operand, *rest, **options)

    return decomposed


def _is_static(packet: Any, operand: torch.Tensor) -> bool:
    """Whether the resampled extents are numbers, and the values ones that can be weighted."""
    weighted = packet not in _NEAREST and packet not in _EXACT
    return all(isinstance(each, int) for each in operand.shape[2:]) and (
        operand.dtype.is_floating_point or not weighted
    )


def resample_by_constants(program: torch.export.ExportedProgram) -> bool:
    """Write out a decomposed program's resampling, in place; whether there was any."""
    graph = program.graph_module.graph
    constants = _Constants(program)
    found = False
    for node in list(graph.nodes):
        packet = getattr(node.target, "overloadpacket", None)
        if packet not in _PACKETS:
            continue
        operand: Any = node.args[0]
        if not _is_static(packet, operand.meta["val"]):
            continue
        result = node.meta["val"].shape[2:]
        if all(isinstance(each, int) for each in result):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_written(node, packet, constants))
            graph.erase_node(node)
            found = True
    if found:
        program.graph_module.recompile()
    return found


@dataclass
class _Constants:
    """Constants that are added to a program, each content once."""

    program: torch.export.ExportedProgram

    def __post_init__(self) -> None:
        self._known: dict[tuple[Any, ...], fx.Node] = {}

    def node(self, values: NDArray[Any], like: fx.Node) -> fx.Node:
        """The placeholder of a constant."""
        key = values.dtype.str, values.shape, values.tobytes()
        if key not in self._known:
            self._known[key] = self._added(values, like.meta["val"].fake_mode)
        return self._known[key]

    def _added(self, values: NDArray[Any], fake: Any) -> fx.Node:
        graph = self.program.graph_module.graph
        first = next(iter(graph.nodes))
        with graph.inserting_before(first):
            node: fx.Node = graph.placeholder(f"resampled_{len(self._known)}")
        tensor = torch.from_numpy(values.copy())
        node.meta["val"] = fake.from_tensor(tensor, static_shapes=True)
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name)
        self.program.graph_signature.input_specs.insert(0, spec)
        self.program.constants[node.name] = tensor
        return node


def _written(node: fx.Node, packet: Any, constants: _Constants) -> fx.Node:
    """Axis by axis: the sum of rows, each at its places and with its weights."""
    call = calls_beside(node)
    operand: Any = node.args[0]
    made: Any = operand
    value = node.meta["val"]
    aligned, scales = _settings(node, packet)
    weighted = packet not in _NEAREST and packet not in _EXACT
    single = weighted and value.dtype in (torch.float16, torch.bfloat16)
    if single:
        made = call(_aten._to_copy.default, operand, dtype=torch.float32)
    kind = np.dtype(np.float64 if value.dtype == torch.float64 else np.float32)
    for axis, scale in zip(range(2, value.dim()), scales, strict=True):
        sizes = operand.meta["val"].shape[axis], value.shape[axis]
        if packet in _SMOOTH:
            matrix = smooth(*sizes, scale, aligned, kind, cubic=packet in _CUBIC_SMOOTH)
            made = _product(call, made, axis, value.dim(), constants, matrix, node)
            continue
        if packet in _NEAREST or packet in _EXACT:
            taps = nearest(*sizes, scale, exact=packet in _EXACT)
        elif packet in _LINEAR:
            taps = linear(*sizes, scale, aligned, kind)
        else:
            taps = cubic(*sizes, scale, aligned, kind)
        total: Any = None
        for places, weights in taps:
            # Every row at its place is the operand itself.
            whole = sizes[0] == sizes[1] and bool((places == np.arange(sizes[1])).all())
            rows = made
            if not whole:
                rows = call(_aten.index_select.default, made, axis, constants.node(places, node))
            if weights is not None:
                shape = weights.reshape(-1, *[1] * (value.dim() - 1 - axis))
                rows = call(_aten.mul.Tensor, rows, constants.node(shape, node))
            total = rows if total is None else call(_aten.add.Tensor, total, rows)
        made = total
    if made is operand:
        made = call(_aten.clone.default, operand)
    if single:
        made = call(_aten._to_copy.default, made, dtype=value.dtype)
    written: fx.Node = made
    return written


def _settings(node: fx.Node, packet: Any) -> tuple[bool, Sequence[float | None]]:
    """Whether corners are aligned, and the scale of each axis where one is given."""
    target: Any = node.target
    names = [each.name for each in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    count = node.meta["val"].dim() - 2
    aligned = bool(given.get("align_corners", False))
    if "scale_factors" in names:
        return aligned, given.get("scale_factors") or [None] * count
    single = [name for name in names if name.startswith("scales")]
    return aligned, [given.get(name) for name in single]


def nearest(size: int, result: int, scale: float | None, *, exact: bool) -> _Taps:
    """The place that each of `result` reads of `size`, as ``nearest_idx`` of PyTorch has it."""
    numbers = np.arange(result)
    if result == size:
        return [(numbers, None)]
    if result == 2 * size and not exact:
        return [(numbers >> 1, None)]
    step = _step(size, result, scale, False, np.dtype(np.float32))
    shifted = numbers.astype(np.float32) + np.float32(0.5 if exact else 0)
    places = np.floor(shifted * step).astype(np.int64)
    return [(np.minimum(places, size - 1), None)]


def linear(
    size: int, result: int, scale: float | None, aligned: bool, kind: np.dtype[Any]
) -> _Taps:
    """Two places and weights for each, as ``compute_source_index_and_lambda`` has them."""
    if result == size:
        return [(np.arange(result), None)]
    real = np.maximum(_sources(size, result, scale, aligned, kind), kind.type(0))
    first = np.minimum(real.astype(np.int64), size - 1)
    weight = np.clip(real - first.astype(kind), kind.type(0), kind.type(1))
    second = np.minimum(first + 1, size - 1)
    return [(first, kind.type(1) - weight), (second, weight)]


def cubic(size: int, result: int, scale: float | None, aligned: bool, kind: np.dtype[Any]) -> _Taps:
    """Four places and weights for each, of Keys' cubic convolution."""
    if result == size:
        return [(np.arange(result), None)]
    real = _sources(size, result, scale, aligned, kind)
    first = np.floor(real)
    part = np.clip(real - first, kind.type(0), kind.type(1))
    places = first.astype(np.int64)
    weights = (_far(part + 1), _near(part), _near(1 - part), _far(2 - part))
    return [
        (np.clip(places + shift, 0, size - 1), weight.astype(kind))
        for shift, weight in zip((-1, 0, 1, 2), weights, strict=True)
    ]


def smooth(
    size: int, result: int, scale: float | None, aligned: bool, kind: np.dtype[Any], *, cubic: bool
) -> NDArray[Any]:
    """The weights of `size` rows, ``[result, size]``, with ``antialias=True``.

    A filter as wide as a step between results; ``_compute_indices_weights_aa`` of PyTorch.
    """
    if result == size:
        return np.eye(size, dtype=kind)
    step = _step(size, result, scale, aligned, kind)
    width = kind.type(max(step, 1))
    support = width * (2 if cubic else 1)
    centre = (step * (np.arange(result).astype(kind) + kind.type(0.5)))[:, None]
    first = np.maximum((centre - support + kind.type(0.5)).astype(np.int64), 0)
    behind = np.minimum((centre + support + kind.type(0.5)).astype(np.int64), size)
    places = np.arange(size)[None]
    apart = np.abs((places.astype(kind) - centre + kind.type(0.5)) / width)
    if cubic:
        near, far = (each(apart, _SMOOTH_CUBIC_A) for each in (_near, _far))
        weights = np.where(apart < 1, near, np.where(apart < 2, far, 0))
    else:
        weights = np.maximum(1 - apart, 0)
    weights = np.where((places >= first) & (places < behind), weights, 0)
    total = weights.sum(1, keepdims=True)
    found: NDArray[Any] = (weights / np.where(total == 0, 1, total)).astype(kind)
    return found


def _product(
    call: Callable[..., Any],
    operand: Any,
    axis: int,
    rank: int,
    constants: _Constants,
    matrix: NDArray[Any],
    node: fx.Node,
) -> Any:
    """Rows along `axis` as a product: of many, and each with its own weights."""
    if matrix.shape[0] == matrix.shape[1] and bool((matrix == np.eye(len(matrix))).all()):
        return operand
    last = rank - 1
    turned = [*range(axis), last, *range(axis + 1, last), axis]
    rows = operand if axis == last else call(_aten.permute.default, operand, turned)
    found = call(_aten.matmul.default, rows, constants.node(matrix.T.copy(), node))
    return found if axis == last else call(_aten.permute.default, found, turned)


def _near(at: NDArray[Any], a: float = _CUBIC_A) -> NDArray[Any]:
    weights: NDArray[Any] = ((a + 2) * at - (a + 3)) * at * at + 1
    return weights


def _far(at: NDArray[Any], a: float = _CUBIC_A) -> NDArray[Any]:
    weights: NDArray[Any] = ((a * at - 5 * a) * at + 8 * a) * at - 4 * a
    return weights


def _sources(
    size: int, result: int, scale: float | None, aligned: bool, kind: np.dtype[Any]
) -> NDArray[Any]:
    step = _step(size, result, scale, aligned, kind)
    numbers = np.arange(result).astype(kind)
    half = kind.type(0.5)
    sources: NDArray[Any] = step * numbers if aligned else step * (numbers + half) - half
    return sources


def _step(size: int, result: int, scale: float | None, aligned: bool, kind: np.dtype[Any]) -> Any:
    """``area_pixel_compute_scale`` of PyTorch."""
    if aligned:
        return kind.type(size - 1) / kind.type(result - 1) if result > 1 else kind.type(0)
    if scale is not None and scale > 0:
        return kind.type(1.0 / scale)
    return kind.type(size) / kind.type(result)
