"""Loads an ONNX model or a torch module into ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tapml.backends.onnx_graph import OnnxGraph
from tapml.backends.parts import Graph, PartsRunner, Prepared, graph_of
from tapml.backends.runner import Array, Input, Node, Runner, is_tensor, to_plain
from tapml.backends.steps import filled, in_steps
from tapml_targets.errors import UnsupportedOperatorError

_LEVELS: Final = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "disabled": "ORT_DISABLE_ALL",
}
# An operator, an opset and a file of a later release.
_UNSUPPORTED: Final = (
    "is not a registered", "is under development and support", "Unsupported model IR version",
)  # fmt: skip


class _OnnxRuntime:
    def __init__(self, model: Path, level: str) -> None:
        self._graph = OnnxGraph(model)
        self._level = _LEVELS[level]
        # By its path, so that weights in files beside the model are found.
        self._session = _open(str(model), self._level)
        self.versions = _versions
        self.save_layer = self._graph.save_alone

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
        session = _open(self._graph.with_all_outputs().SerializeToString(), self._level)
        names = [each.name for each in session.get_outputs()]
        values = session.run(None, filled(inputs, self._graph.step))
        return self._graph.by_node(
            {
                name: to_plain(each)
                for name, each in zip(names, values, strict=True)
                if is_tensor(each)
            }
        )

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        session = _open(self._graph.until(node).SerializeToString(), self._level)
        return list(self._run(session, filled(inputs, self._graph.step)).values())

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        model, given = self._graph.alone(node, inputs)
        session = _open(model.SerializeToString(), self._level)
        return list(self._run(session, given).values())

    @staticmethod
    def _run(session: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = [each.name for each in session.get_outputs()]
        return dict(zip(names, map(to_plain, session.run(None, dict(inputs))), strict=True))


def _open(model: str | bytes, level: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Of classes without a common one.
        named = type(error).__name__ == "NotImplemented"
        if not named and not any(each in str(error) for each in _UNSUPPORTED):
            raise
        raise UnsupportedOperatorError(str(error)) from error


def _versions() -> dict[str, str]:
    import onnx
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__}


def _of_program(folder: Path, level: str) -> PartsRunner:
    """A torch module: each part is exported for the shapes that it is given."""
    graph = graph_of(folder)

    import torch

    def prepare(_: Graph, part: Any, inputs: Mapping[str, Array]) -> Prepared:
        from tapml.backends.torch_export import to_onnx

        session = _open(to_onnx(part, inputs), level)
        reads = {each.name for each in session.get_inputs()}

        def run(given: Mapping[str, Array]) -> list[Array]:
            tensors = dict(zip(part.inputs, part.tensors(given), strict=True))
            arrays = {name: each.numpy() for name, each in tensors.items() if name in reads}
            # By place: a value that is several outputs has one of their names.
            return list(session.run(None, arrays))

        return run

    return PartsRunner(graph, prepare, lambda: _versions() | {"torch": torch.__version__})


def load(model: Path, variant: str) -> Runner:
    """Load a ``.onnx`` file or a torch module's folder; raises InputError if it is neither."""
    return _of_program(model, _LEVELS[variant]) if model.is_dir() else _OnnxRuntime(model, variant)
