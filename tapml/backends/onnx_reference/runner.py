"""Loads an ONNX model into ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tapml.backends.onnx_graph import OnnxGraph
from tapml.backends.runner import Array, Input, Node, is_tensor, to_plain
from tapml.backends.steps import filled, in_steps
from tapml_targets.errors import UnsupportedOperatorError


class _Reference:
    def __init__(self, model: Path) -> None:
        from onnx.reference import ReferenceEvaluator

        self._graph = OnnxGraph(model)
        self.save_layer = self._graph.save_alone
        try:
            self._evaluator = ReferenceEvaluator(self._graph.model)
        except RuntimeError as error:  # Its class does not say so.
            if "No implementation for operator" not in str(error):
                raise
            raise UnsupportedOperatorError(str(error)) from error

    def versions(self) -> dict[str, str]:
        import onnx

        return {"onnx": onnx.__version__}

    def inputs(self) -> list[Input]:
        return self._graph.inputs()

    def nodes(self) -> list[Node]:
        return self._graph.nodes()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        def run(step: Mapping[str, Array]) -> list[Array]:
            outputs = self._evaluator.run(None, dict(step))
            return [to_plain(each) for each in outputs]

        found = in_steps(run, inputs, self._graph.step)
        return dict(zip(self._graph.outputs, found, strict=True))

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        given = filled(inputs, self._graph.step)
        values = self._evaluator.run(None, given, intermediate=True)
        return self._graph.by_node(
            {name: to_plain(value) for name, value in values.items() if is_tensor(value)}
        )

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(self._graph.until(node))
        return [to_plain(each) for each in evaluator.run(None, filled(inputs, self._graph.step))]

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        from onnx.reference import ReferenceEvaluator

        model, given = self._graph.alone(node, inputs)
        outputs = ReferenceEvaluator(model).run(None, given)
        return [to_plain(each) for each in outputs]


def load(model: Path, variant: str) -> _Reference:
    """Load a ``.onnx`` file; raises InputError if it is none."""
    del variant
    return _Reference(model)
