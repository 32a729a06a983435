"""Parts of a torch program as an ONNX model, for libraries that read no torch program."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx

from tapml.backends.runner import Array
from tapml.backends.torch_graph import TorchPart
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
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module, part.tensors(inputs), made, dynamo=False, opset_version=_OPSET,
                input_names=list(part.inputs), output_names=list(part.outputs),
            )  # fmt: skip
    except Exception as error:  # Of many classes, from what an operation is.
        line = str(error).strip().partition("\n")[0]
        raise UnsupportedOperatorError(f"torch.onnx.export: {line[:300]}") from error
    content: bytes = made.getvalue()
    return content
