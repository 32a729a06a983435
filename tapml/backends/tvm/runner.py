"""Loads an ONNX model or a torch module into TVM: Relax, compiled by LLVM, on its machine."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tapml.backends.parts import Graph, PartsRunner, Prepared, graph_of
from tapml.backends.runner import Array
from tapml.backends.torch_graph import TorchPart
from tapml.native_imports import import_torch, import_tvm
from tapml_targets.errors import UnsupportedOperatorError


def _imported(part: Any, inputs: Mapping[str, Array]) -> Any:
    """The part as a Relax module, for inputs of these shapes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if isinstance(part, TorchPart):
                from tvm.relax.frontend.torch import from_exported_program

                with torch.no_grad():
                    program = torch.export.export(part.module, part.tensors(inputs))
                return from_exported_program(program)
            from tvm.relax.frontend.onnx import from_onnx

            shapes = {name: list(each.shape) for name, each in inputs.items()}
            return from_onnx(part, shape_dict=shapes, keep_params_in_input=False)
        except (AssertionError, NotImplementedError, ValueError, TypeError) as error:
            line = str(error).strip().partition("\n")[0]
            raise UnsupportedOperatorError(f"TVM's importer: {line[:300]}") from error


def _prepare(graph: Graph, part: Any, inputs: Mapping[str, Array]) -> Prepared:
    import tvm
    from tvm import relax

    del graph
    module = _imported(part, inputs)
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    names = list(part.inputs) if isinstance(part, TorchPart) else list(inputs)

    def run(given: Mapping[str, Array]) -> list[Array]:
        results = machine["main"](*(tvm.runtime.tensor(given[name]) for name in names))
        numbers = tvm.runtime.ShapeTuple | int | float
        one = hasattr(results, "numpy") or isinstance(results, numbers)
        return [_array(each) for each in ([results] if one else results)]

    return run


def _array(result: Any) -> Array:
    """A tensor, an extent or its float, or a shape, which is a list of numbers."""
    if hasattr(result, "numpy"):
        found: Array = result.numpy()
        return found
    if isinstance(result, float):
        return np.asarray(result, np.float32)
    return np.asarray(result if isinstance(result, int) else list(result), np.int64)


def _versions() -> dict[str, str]:
    import tvm

    return {"tvm": tvm.__version__}


def load(model: Path, variant: str) -> PartsRunner:
    """Load an ``.onnx`` file or a module's folder; raises InputError if it is neither."""
    del variant
    import_torch()
    import_tvm()
    return PartsRunner(graph_of(model), _prepare, _versions, step=1)
