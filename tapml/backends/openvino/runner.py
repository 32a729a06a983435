"""Loads an ONNX model or a torch module into OpenVINO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends.onnx_graph import OnnxGraph
from tapml.backends.parts import Graph, PartsRunner, Prepared, graph_of
from tapml.backends.runner import Array, Input, Node, Runner, to_plain
from tapml.backends.steps import filled, in_steps
from tapml_targets.errors import UnsupportedOperatorError

_UNCONVERTED: Final = re.compile(
    r"(No conversion rule found for operations|Conversion is failed for): (?P<what>[^\n]+)"
)


class _OpenVino:
    def __init__(self, model: Path) -> None:
        import openvino

        self._graph = OnnxGraph(model)
        self.save_layer = self._graph.save_alone
        self._core = openvino.Core()
        self._path = model
        self._model = self._compile(self._read(str(model)))

    def versions(self) -> dict[str, str]:
        import onnx
        import openvino

        return {"openvino": openvino.__version__.partition("-")[0], "onnx": onnx.__version__}

    def inputs(self) -> list[Input]:
        return self._graph.inputs()

    def nodes(self) -> list[Node]:
        return self._graph.nodes()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        def run(step: Mapping[str, Array]) -> list[Array]:
            return _values(self._model, dict(step))[: len(self._graph.outputs)]

        found = in_steps(run, inputs, self._graph.step)
        return dict(zip(self._graph.outputs, found, strict=True))

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        model = self._read(str(self._path))
        known = {
            name
            for operation in model.get_ordered_ops()
            for output in operation.outputs()
            for name in output.get_names()
        }
        wanted = [
            name for names in self._graph.values().values() for name in names if name in known
        ]
        extra = [name for name in wanted if name not in self._graph.outputs]
        if extra:
            model.add_outputs(extra)
        compiled = self._compile(model)
        values = _values(compiled, filled(inputs, self._graph.step))
        found = {
            name: value
            for port, value in zip(compiled.outputs, values, strict=True)
            for name in port.get_names()
        }
        return self._graph.by_node({name: found[name] for name in wanted if name in found})

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        model = self._read(self._graph.until(node).SerializeToString())
        # The parameters that lead there: others are not in it.
        given = filled(inputs, self._graph.step)
        reads = {name for each in model.inputs for name in each.get_names()}
        return _values(
            self._compile(model), {name: each for name, each in given.items() if name in reads}
        )

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        model, given = self._graph.alone(node, inputs)
        return _values(self._compile(self._read(model.SerializeToString())), given)

    def _read(self, model: str | bytes) -> Any:
        try:
            return self._core.read_model(model)
        except RuntimeError as error:
            # Its class does not say so: all that the library raises is a RuntimeError here.
            if "OpConversionFailure" not in str(error):
                raise
            found = _UNCONVERTED.search(str(error))
            what = " ".join(found["what"].split()) if found else "an operator"
            raise UnsupportedOperatorError(f"OpenVINO does not convert {what}") from error

    def _compile(self, model: Any) -> Any:
        return _compiled(self._core, model)


def _values(compiled: Any, given: Any) -> list[Array]:
    """The outputs of a call, in order."""
    outputs = compiled(given)
    return [
        _of_bfloat16(outputs[port]) if port.get_element_type().get_type_name() == "bf16"
        else to_plain(outputs[port])
        for port in compiled.outputs
    ]  # fmt: skip


def _of_bfloat16(array: Array) -> Array:
    """The values of an array that OpenVINO hands out as float16, with the bits of bfloat16.

    Examples
    --------
    >>> _of_bfloat16(np.array([0x3FC0], np.uint16).view(np.float16))
    array([1.5], dtype=float32)
    """
    return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _compiled(core: Any, model: Any) -> Any:
    # In half precision on CPUs that have it, unless this asks for float32.
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def _of_program(folder: Path) -> PartsRunner:
    """A torch module: each part is read by OpenVINO's own frontend, for the shapes given."""
    graph = graph_of(folder)

    import openvino
    import torch

    core = openvino.Core()

    def prepare(_: Graph, part: Any, inputs: Mapping[str, Array]) -> Prepared:
        try:
            with torch.no_grad():
                program = torch.export.export(part.module, part.tensors(inputs))
            compiled = _compiled(core, openvino.convert_model(program))
        except Exception as error:  # A RuntimeError for nearly everything.
            found = _UNCONVERTED.search(str(error))
            what = found["what"] if found else str(error).strip().partition("\n")[0]
            raise UnsupportedOperatorError(f"OpenVINO does not convert {what[:200]}") from error

        def run(given: Mapping[str, Array]) -> list[Array]:
            return _values(compiled, [_tensor(each) for each in part.tensors(given)])

        return run

    def _tensor(given: torch.Tensor) -> Any:
        if given.dtype != torch.bfloat16:  # NumPy has no such dtype, its bits are handed over.
            return given.numpy()
        bits = given.contiguous().view(torch.int16).numpy()
        return openvino.Tensor(bits, openvino.Shape(bits.shape), openvino.Type.bf16)

    def versions() -> dict[str, str]:
        return {"openvino": openvino.__version__.partition("-")[0], "torch": torch.__version__}

    return PartsRunner(graph, prepare, versions)


def load(model: Path, variant: str) -> Runner:
    """Load a ``.onnx`` file or a torch module's folder; raises InputError if it is neither."""
    del variant
    return _of_program(model) if model.is_dir() else _OpenVino(model)
