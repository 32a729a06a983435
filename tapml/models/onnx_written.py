"""Nodes and weights that take the place of one node of an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class Written:
    """Nodes and weights that take the place of one node."""

    name: str
    # Of the operators, where what they take is not the same in all.
    opset: int = 13
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def weight(self, array: Array) -> str:
        """The name of a tensor that is stored."""
        import onnx

        name = f"{self.name}/weight_{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def several(self, operator: str, inputs: Sequence[str], count: int, **given: Any) -> list[str]:
        """The results of a node."""
        import onnx

        name = f"{self.name}/{operator}_{len(self.nodes)}"
        results = [f"{name}_{index}" for index in range(count)]
        self.nodes.append(onnx.helper.make_node(operator, inputs, results, name=name, **given))
        return results

    def one(self, operator: str, *inputs: str, **given: Any) -> str:
        """The result of a node."""
        return self.several(operator, inputs, 1, **given)[0]

    def parts(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        """A tensor cut along an axis."""
        if len(sizes) == 1:
            return [value]
        given = self.weight(np.array(sizes, np.int64))
        return self.several("Split", (value, given), len(sizes), axis=axis)

    def joined(self, values: Sequence[str], axis: int) -> str:
        """Tensors one after the other along an axis."""
        return self.one("Concat", *values, axis=axis) if len(values) > 1 else values[0]

    def result(self, value: str, name: str) -> None:
        """Give a tensor the name that others read."""
        if name:
            import onnx

            self.nodes.append(
                onnx.helper.make_node("Identity", [value], [name], name=f"{self.name}/{name}")
            )
