"""Loads an ONNX model into ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tapml.backends.onnx_graph import OnnxGraph
from tapml.backends.parts import filled, in_steps
from tapml.backends.runner import Array, Input, Node, to_plain
from tapml_targets.errors import UnsupportedOperatorError

_LEVELS: Final = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "disabled": "ORT_DISABLE_ALL",
}


class _OnnxRuntime:
    def __init__(self, model: Path, level: str) -> None:
        self._graph = OnnxGraph(model)
        self._level = _LEVELS[level]
        # By its path, so that weights in files beside the model are found.
        self._session = self._open(str(model))

    def versions(self) -> dict[str, str]:
        import onnx
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}

    def inputs(self) -> list[Input]:
        return self._graph.inputs()

    def nodes(self) -> list[Node]:
        return self._graph.nodes()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        def run(step: Mapping[str, Array]) -> list[Array]:
            return list(self._run(self._session, step).values())

        found = in_steps(run, inputs, self._graph.step)
        return dict(zip(self._graph.outputs, found, strict=True))

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        session = self._open(self._graph.with_all_outputs().SerializeToString())
        return self._graph.by_node(self._run(session, filled(inputs, self._graph.step)))

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        model, given = self._graph.alone(node, inputs)
        return list(self._run(self._open(model.SerializeToString()), given).values())

    def _open(self, model: str | bytes) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, self._level)
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
            raise UnsupportedOperatorError(str(error)) from error

    @staticmethod
    def _run(session: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = [each.name for each in session.get_outputs()]
        return dict(zip(names, map(to_plain, session.run(None, dict(inputs))), strict=True))


def load(model: Path, variant: str) -> _OnnxRuntime:
    """Load a ``.onnx`` file; raises InputError if it is none."""
    return _OnnxRuntime(model, variant)
