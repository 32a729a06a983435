"""Loads an ONNX model into OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tapml.backends.onnx_graph import OnnxGraph
from tapml.backends.runner import Array, Input, Node, to_plain
from tapml_targets.errors import UnsupportedOperatorError


class _OpenVino:
    def __init__(self, model: Path) -> None:
        import openvino

        self._graph = OnnxGraph(model)
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
        outputs = self._model(dict(inputs))
        values = [to_plain(outputs[place]) for place in range(len(self._graph.outputs))]
        return dict(zip(self._graph.outputs, values, strict=True))

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
        outputs = self._compile(model)(dict(inputs))
        found = {name: to_plain(outputs[port]) for port in outputs for name in port.get_names()}
        return self._graph.by_node({name: found[name] for name in wanted if name in found})

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        model, given = self._graph.alone(node, inputs)
        compiled = self._compile(self._read(model.SerializeToString()))
        outputs = compiled(given)
        return [to_plain(outputs[place]) for place in range(len(compiled.outputs))]

    def _read(self, model: str | bytes) -> Any:
        import openvino

        try:
            return self._core.read_model(model)
        except openvino.frontend.OpConversionFailure as error:
            raise UnsupportedOperatorError(str(error)) from error

    def _compile(self, model: Any) -> Any:
        # In half precision on CPUs that have it, unless this asks for float32.
        return self._core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def load(model: Path, variant: str) -> _OpenVino:
    """Load a ``.onnx`` file; raises InputError if it is none."""
    del variant
    return _OpenVino(model)
