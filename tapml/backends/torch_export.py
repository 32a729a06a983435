"""Parts of a torch program as an ONNX model, for libraries that read no torch program."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tapml.backends.runner import Array
from tapml.backends.torch_graph import TorchPart, writes
from tapml_targets.errors import UnsupportedOperatorError

_OPSET: Final = 20


def to_onnx(part: TorchPart, inputs: Mapping[str, Array]) -> bytes:
    """The part as an ONNX model for inputs of these shapes, with its own names.

    By PyTorch's exporter of traces, which needs no other package.

    Raises
    ------
    UnsupportedOperatorError
        If PyTorch cannot export it.
    """
    made: Any = io.BytesIO()  # Which its annotation leaves out.
    # What torch.export gives refuses to be exported again, a module of its graph does not.
    graph = fx.Graph()
    graph.output(graph.graph_copy(part.module.graph, {}))
    module = fx.GraphModule(part.module, graph)
    tensors = part.tensors(inputs)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _without_writes(module, tensors), tensors, made,
                dynamo=False, opset_version=_OPSET,
                input_names=list(part.inputs), output_names=list(part.outputs),
            )  # fmt: skip
    except Exception as error:  # Of many classes, from what an operation is.
        line = str(error).strip().partition("\n")[0]
        raise UnsupportedOperatorError(f"torch.onnx.export: {line[:300]}") from error
    content: bytes = made.getvalue()
    return content


def _without_writes(module: fx.GraphModule, tensors: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """The same function where nothing writes in place.

    The exporter loses what is written through a view of a value without an error: see
    ``docs/bugs/torch-onnx-write-through-a-view.py``.
    """
    if not writes(module):
        return module
    functional = torch.func.functionalize(module, remove="mutations")
    made = make_fx(functional, decomposition_table=_PLAIN)(*tensors)
    for node in made.graph.nodes:
        # The exporter knows a conversion by its other name.
        if node.target is _ATEN._to_copy.default and list(node.kwargs) == ["dtype"]:
            node.target, node.args = _ATEN.to.dtype, (*node.args, node.kwargs["dtype"])
            node.kwargs = {}
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


def _put(whole: torch.Tensor, part: torch.Tensor, axis: int, places: slice) -> torch.Tensor:
    at = torch.arange(whole.shape[axis])[places]
    return torch.index_copy(whole, axis, at, part)


def _put_slice(
    whole: torch.Tensor, part: torch.Tensor, axis: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> torch.Tensor:  # fmt: skip
    return _put(whole, part, axis, slice(start, end, step))


def _put_one(whole: torch.Tensor, part: torch.Tensor, axis: int, place: int) -> torch.Tensor:
    place %= whole.shape[axis]
    return _put(whole, part.unsqueeze(axis), axis, slice(place, place + 1))


_ATEN: Final = torch.ops.aten
_PLAIN: Final[dict[Any, Callable[..., Any]]] = {
    _ATEN.slice_scatter.default: _put_slice,
    _ATEN.select_scatter.default: _put_one,
    _ATEN.copy.default: lambda old, new, _=False: new.to(old.dtype).expand_as(old),
    _ATEN.fill.Tensor: lambda old, new: new.to(old.dtype).expand_as(old),
    _ATEN.fill.Scalar: lambda old, new: (torch.zeros_like(old) + new).to(old.dtype),
    _ATEN.lift_fresh_copy.default: torch.clone,
}
"""What making a program functional brings in, in operations that are exported."""
