"""Complex numbers inside a program, as pairs of real ones.

Rotary positions are sometimes written as a product of complex numbers (DeepSeek-V2, Llama 4), which
no compiler here has. A complex tensor becomes a real one with a last axis of two, the form that
``view_as_real`` gives it anyway. What has no such form stays and is named by the importer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from tapml.importing.calls_beside import Call, calls_beside

_ATEN: Final = torch.ops.aten
_PARTS_OF: Final = "parts of a pair"
_CHECK: Final = _ATEN._assert_tensor_metadata.default


def real_pairs(module: fx.GraphModule) -> None:
    """Rewrite a program's complex tensors where all operations on them have a real form."""
    pairs: dict[fx.Node, fx.Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not _is_concerned(node):
            continue
        with module.graph.inserting_before(node):
            made = _rewritten(node, pairs)
        if made is None:
            if node.target is _CHECK and node.args[0] in pairs:
                # Of what is no longer a complex tensor.
                module.graph.erase_node(node)
            continue
        if _is_complex(node):
            pairs[node] = made
        else:
            node.replace_all_uses_with(made)
    if pairs:
        _take_parts(module.graph)
        module.graph.eliminate_dead_code()
        module.recompile()


def _take_parts(graph: fx.Graph) -> None:
    """Read the part itself where one of a pair is read: the other may be read by nobody."""
    for node in graph.nodes:
        if node.target is _ATEN.select.int and isinstance(node.args[0], fx.Node):
            pair, axis, index = node.args
            parts = pair.meta.get(_PARTS_OF)
            if parts is not None and axis in (-1, pair.meta["val"].dim() - 1):
                node.replace_all_uses_with(parts[index])


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_concerned(node: fx.Node) -> bool:
    return _is_complex(node) or any(map(_is_complex, node.all_input_nodes))


def _rewritten(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The pair of a complex result, or a real result; None if there is no such form."""
    call = calls_beside(node)
    target: Any = node.target
    arguments: Any = node.args
    if target in _MAKERS:
        return _MAKERS[target](call, *arguments)
    if any(_is_complex(each) and each not in pairs for each in node.all_input_nodes):
        return None
    if target is _ATEN._to_copy.default and not _is_complex(arguments[0]):
        return _of_real(call, arguments[0], node.meta["val"].dtype)
    if target in _MOVERS and (_is_complex(node) or target is _ATEN.view_as_real.default):
        first, *rest = arguments
        moved = _MOVERS[target](call, pairs[first], first.meta["val"].dim(), *rest)
        return _as_real(call, moved, node.meta["val"].dtype)
    return _computed(call, target, arguments, node, pairs)


def _computed(
    call: Call, target: Any, arguments: Any, node: fx.Node, pairs: dict[fx.Node, fx.Node]
) -> fx.Node | None:
    """The pair, or the real numbers, of sums and products of pairs and of their parts."""
    found: fx.Node | None = None
    if target in _PARTS:
        found = _PARTS[target](call, *(pairs.get(each, each) for each in arguments))
    elif target in _SUMS and all(map(_is_complex, arguments)):
        found = call(target, *(pairs[each] for each in arguments), **node.kwargs)
    elif target is _ATEN.cat.default:
        parts, *axis = arguments
        rank = node.meta["val"].dim()
        dtype = node.meta["val"].dtype
        joined = [pairs[each] if each in pairs else _of_real(call, each, dtype) for each in parts]
        found = call(target, joined, _axis(rank, *(axis or [0])))
    elif target in _PRODUCTS and len(arguments) == 2:
        both = [_is_complex(each) for each in arguments]
        one, other = (pairs.get(each, each) for each in arguments)
        if all(both):
            found = _product(call, one, other) if target is _ATEN.mul.Tensor else None
        elif both[0] or target is not _ATEN.div.Tensor:
            pair, factor = (one, other) if both[0] else (other, one)
            if isinstance(factor, fx.Node):
                factor = call(_ATEN.unsqueeze.default, factor, -1)
            found = None if isinstance(factor, complex) else call(target, pair, factor)
    return found


def _as_real(call: Call, pair: fx.Node, dtype: torch.dtype) -> fx.Node:
    real = dtype.to_real()
    if pair.meta["val"].dtype == real:
        return pair
    return call(_ATEN._to_copy.default, pair, dtype=real)


def _of_real(call: Call, value: fx.Node, dtype: torch.dtype) -> fx.Node:
    real = _as_real(call, value, dtype)
    return _pair(call, real, call(_ATEN.zeros_like.default, real))


def _product(call: Call, one: fx.Node, other: fx.Node) -> fx.Node:
    (a, b), (c, d) = (_parts(call, each) for each in (one, other))
    real = call(_ATEN.sub.Tensor, call(_ATEN.mul.Tensor, a, c), call(_ATEN.mul.Tensor, b, d))
    imaginary = call(_ATEN.add.Tensor, call(_ATEN.mul.Tensor, a, d), call(_ATEN.mul.Tensor, b, c))
    return _pair(call, real, imaginary)


def _pair(call: Call, real: fx.Node, imaginary: fx.Node) -> fx.Node:
    parts = _broadcast(call, real, imaginary)
    pair = call(_ATEN.cat.default, [call(_ATEN.unsqueeze.default, each, -1) for each in parts], -1)
    pair.meta[_PARTS_OF] = parts
    return pair


def _broadcast(call: Call, *given: fx.Node) -> list[fx.Node]:
    shapes = [each.meta["val"].shape for each in given]
    if all(each == shapes[0] for each in shapes):
        return list(given)
    # A graph has no node for an extent that only a run knows: the other's shape is asked for it.
    own = [call(_ATEN.zeros_like.default, each, dtype=torch.bool) for each in given]
    other = call(_ATEN.logical_or.default, *own)
    return [call(_ATEN.where.self, other, each, each) for each in given]


def _parts(call: Call, pair: fx.Node) -> list[fx.Node]:
    return [call(_ATEN.select.int, pair, -1, part) for part in (0, 1)]


def _size(call: Call, pair: fx.Node) -> fx.Node:
    real, imaginary = _parts(call, pair)
    squares = [call(_ATEN.mul.Tensor, each, each) for each in (real, imaginary)]
    return call(_ATEN.sqrt.default, call(_ATEN.add.Tensor, *squares))


def _angle(call: Call, pair: fx.Node) -> fx.Node:
    real, imaginary = _parts(call, pair)
    return call(_ATEN.atan2.default, imaginary, real)


def _conjugate(call: Call, pair: fx.Node) -> fx.Node:
    real, imaginary = _parts(call, pair)
    return _pair(call, real, call(_ATEN.neg.default, imaginary))


def _opposite(call: Call, pair: fx.Node) -> fx.Node:
    return call(_ATEN.neg.default, pair)


def _polar(call: Call, size: fx.Node, angle: fx.Node) -> fx.Node:
    parts = [
        call(_ATEN.mul.Tensor, size, call(each, angle))
        for each in (_ATEN.cos.default, _ATEN.sin.default)
    ]
    return _pair(call, parts[0], parts[1])


def _axis(rank: int, axis: int) -> int:
    """The same axis of the pair, counted from the beginning."""
    return axis if axis >= 0 else axis + rank


def _unsqueeze(call: Call, pair: fx.Node, rank: int, axis: int) -> fx.Node:
    return call(_ATEN.unsqueeze.default, pair, _axis(rank + 1, axis))


def _squeeze(call: Call, pair: fx.Node, rank: int, axes: int | list[int]) -> fx.Node:
    given = [axes] if isinstance(axes, int) else axes
    return call(_ATEN.squeeze.dims, pair, [_axis(rank, axis) for axis in given])


def _flip(call: Call, pair: fx.Node, rank: int, axes: list[int]) -> fx.Node:
    return call(_ATEN.flip.default, pair, [_axis(rank, axis) for axis in axes])


def _repeat(call: Call, pair: fx.Node, _rank: int, times: list[Any]) -> fx.Node:
    return call(_ATEN.repeat.default, pair, [*times, 1])


def _index(call: Call, pair: fx.Node, rank: int, axis: int, places: fx.Node) -> fx.Node:
    return call(_ATEN.index_select.default, pair, _axis(rank, axis), places)


def _slice(call: Call, pair: fx.Node, rank: int, axis: int = 0, *rest: Any) -> fx.Node:
    return call(_ATEN.slice.Tensor, pair, _axis(rank, axis), *rest)


def _select(call: Call, pair: fx.Node, rank: int, axis: int, index: int) -> fx.Node:
    return call(_ATEN.select.int, pair, _axis(rank, axis), index)


def _permute(call: Call, pair: fx.Node, rank: int, axes: list[int]) -> fx.Node:
    return call(_ATEN.permute.default, pair, [*(_axis(rank, axis) for axis in axes), rank])


def _shaped(target: Any) -> Callable[..., fx.Node]:
    def shaped(call: Call, pair: fx.Node, _rank: int, shape: list[Any]) -> fx.Node:
        return call(target, pair, [*shape, 2])

    return shaped


def _same(_call: Call, pair: fx.Node, *_: Any) -> fx.Node:
    return pair


_MAKERS: Final[dict[Any, Callable[..., fx.Node]]] = {
    _ATEN.polar.default: _polar,
    _ATEN.complex.default: _pair,
    _ATEN.view_as_complex.default: _same,
}
_MOVERS: Final[dict[Any, Callable[..., fx.Node]]] = {
    _ATEN.view_as_real.default: _same,
    _ATEN._to_copy.default: _same,
    _ATEN.clone.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.unsqueeze.default: _unsqueeze,
    _ATEN.squeeze.dim: _squeeze,
    _ATEN.squeeze.dims: _squeeze,
    _ATEN.flip.default: _flip,
    _ATEN.repeat.default: _repeat,
    _ATEN.index_select.default: _index,
    _ATEN.slice.Tensor: _slice,
    _ATEN.select.int: _select,
    _ATEN.permute.default: _permute,
    _ATEN.view.default: _shaped(_ATEN.view.default),
    _ATEN.reshape.default: _shaped(_ATEN.reshape.default),
    _ATEN.expand.default: _shaped(_ATEN.expand.default),
}
_PARTS: Final[dict[Any, Callable[..., fx.Node]]] = {
    _ATEN.abs.default: _size,
    _ATEN.angle.default: _angle,
    _ATEN._conj.default: _conjugate,
    _ATEN._conj_physical.default: _conjugate,
    _ATEN.conj_physical.default: _conjugate,
    _ATEN.neg.default: _opposite,
    _ATEN.resolve_conj.default: lambda _, pair: pair,
    _ATEN.resolve_neg.default: lambda _, pair: pair,
}
_SUMS: Final = (_ATEN.add.Tensor, _ATEN.sub.Tensor)
_PRODUCTS: Final = (_ATEN.mul.Tensor, _ATEN.mul.Scalar, _ATEN.div.Tensor)
