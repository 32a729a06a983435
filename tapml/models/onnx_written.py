"""Nodes and weights that take the place of one node of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tapml_targets.errors import UnsupportedOperatorError

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
        # Not ascontiguousarray, which gives a scalar an axis.
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))
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


@dataclass(frozen=True)
class At:
    """A node that is written out, with what is known of its inputs.

    Attributes
    ----------
    given
        Its attributes.
    constants
        Tensors of the model that are stored, by name.
    values
        Every value of a run of the model by name.
    """

    node: Any
    given: Mapping[str, Any]
    written: Written
    constants: Mapping[str, Array]
    values: Mapping[str, Array]

    def has(self, place: int) -> bool:
        """Whether there is an input at a place."""
        return place < len(self.node.input) and bool(self.node.input[place])

    def constant(self, place: int) -> Array | None:
        """The input at a place, if it is stored."""
        return self.constants.get(self.node.input[place]) if self.has(place) else None

    def _value(self, place: int) -> Array:
        name = self.node.input[place]
        found = self.constants.get(name, self.values.get(name))
        if found is None:
            raise refused(self.node, f"nothing is known of its input {name!r}")
        return found

    def shape(self, place: int) -> tuple[int, ...]:
        """The extents of the input at a place."""
        return self._value(place).shape

    def dtype(self, place: int) -> np.dtype[Any]:
        """The dtype of the input at a place."""
        return self._value(place).dtype

    @staticmethod
    def element(dtype: np.dtype[Any]) -> int:
        """ONNX's number of a dtype."""
        import onnx

        return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def integer(self, value: int) -> str:
        """A stored whole number, a scalar."""
        return self.written.weight(np.array(value, np.int64))

    def whole(self, *values: int) -> str:
        """Stored whole numbers, of one axis."""
        return self.written.weight(np.array(values, np.int64))

    def number(self, value: float, place: int = 0) -> str:
        """A stored number of the dtype of the input at a place, a scalar."""
        return self.written.weight(np.array(value, self.dtype(place)))

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """A tensor in another shape."""
        return self.written.one("Reshape", value, self.whole(*shape))


def refused(node: Any, reason: str) -> UnsupportedOperatorError:
    """The error that a node cannot be imported, which names it."""
    operator = f"{node.domain or 'ai.onnx'}.{node.op_type}"
    return UnsupportedOperatorError(
        f"{operator} in node {node.name or 'unnamed'!r} cannot be imported: {reason}"
    )
