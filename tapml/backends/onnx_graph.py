"""An ONNX model as nodes, and models made of its parts: all values as outputs, one node alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends.runner import Array, Input, Node
from tapml.backends.steps import step_of
from tapml_targets.errors import InputError, UnsupportedOperatorError

_OF_SHAPES: Final = ("Shape", "Size")
"""What depends on these is a constant where shapes are fixed."""


class OnnxGraph:
    """An ONNX model, read; a node is named after its first output.

    Raises
    ------
    InputError
        If the file is no valid ONNX model.
    UnsupportedOperatorError
        If an output holds no numbers.
    """

    def __init__(self, path: Path) -> None:
        import onnx

        try:
            self.model = onnx.load(path)
            onnx.checker.check_model(self.model)
        except (onnx.checker.ValidationError, OSError, ValueError) as error:
            raise InputError(f"{path.name} is no valid ONNX model: {error}") from error
        except Exception as error:
            if type(error).__name__ != "DecodeError":
                raise
            raise InputError(f"{path.name} is no ONNX model; expected a .onnx file") from error
        graph = self.model.graph
        self._weights = {each.name: each for each in graph.initializer}
        self._steps = {_name_of(each): each for each in graph.node if any(each.output)}
        self.outputs = [each.name for each in graph.output]
        for each in graph.output:
            if not each.type.HasField("tensor_type"):
                raise UnsupportedOperatorError(
                    f"the output {each.name!r} is no tensor; export the model without it (of "
                    "scikit-learn: zipmap=False)"
                )

    def inputs(self) -> list[Input]:
        """The inputs that are no weights."""
        return [
            Input(each.name, _shape_of(each), _dtype_of(each).name)
            for each in self.model.graph.input
            if each.name not in self._weights
        ]

    @property
    def step(self) -> int | None:
        """Instances of one call, where the model fixes them."""
        return step_of(self.inputs())

    def nodes(self) -> list[Node]:
        """Every node; what it reads from outside of a subgraph counts as read."""
        made = {each.name: (each.name, 0) for each in self.inputs()}
        nodes = []
        for name, step in self._steps.items():
            reads = [each for each in _reads(step) if each in made]
            nodes.append(Node(name, step.op_type, tuple(made[each] for each in reads)))
            made |= {output: (name, i) for i, output in enumerate(_outputs_of(step))}
        return nodes

    def values(self) -> dict[str, list[str]]:
        """The names of every node's outputs, by the node's name."""
        return {name: _outputs_of(step) for name, step in self._steps.items()}

    def whole(self) -> Any:
        """The model."""
        return self.model

    def names_of(self, part: Any) -> list[str]:
        """The names of a model's outputs."""
        return [each.name for each in part.graph.output]

    def with_all_outputs(self, *, computed: bool = False) -> Any:
        """The model with every value as an output; `computed`: only those that inputs reach."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        reached = self._reached()
        names = [
            name
            for names in self.values().values()
            for name in names
            if name not in self.outputs and (name in reached or not computed)
        ]
        self._give(model, names)
        return model

    def until(self, name: str) -> Any:
        """The model as far as a node, whose values are its outputs."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        wanted, kept = set(_outputs_of(self._steps[name])), []
        for step in reversed(self.model.graph.node):
            if not wanted.isdisjoint(step.output):
                kept.append(step)
                wanted.update(_reads(step))
        del model.graph.node[:], model.graph.output[:]
        model.graph.node.extend(reversed(kept))
        self._give(model, _outputs_of(self._steps[name]))
        return model

    def _give(self, model: Any, names: Sequence[str]) -> None:
        """Make these values outputs. Inner values get no shape: libraries infer it.

        The file's annotations of values are removed, because libraries infer nothing about an
        output that has one. Their types are kept: of operators that are not ONNX's no type is
        inferred.
        """
        import onnx

        outputs = {each.name: each for each in self.model.graph.output}
        types = {each.name: each.type.tensor_type.elem_type for each in model.graph.value_info}
        del model.graph.value_info[:]
        for name in names:
            added = onnx.ValueInfoProto(name=name)
            if types.get(name):
                added.type.tensor_type.elem_type = types[name]
            model.graph.output.append(outputs.get(name, added))

    def _reached(self) -> set[str]:
        """The values that inputs reach; the others are constants."""
        reached = {each.name for each in self.inputs()}
        for name, names in self.values().items():
            step = self._steps[name]
            if step.op_type not in _OF_SHAPES and not reached.isdisjoint(_reads(step)):
                reached.update(names)
        return reached

    def alone(self, name: str, inputs: Sequence[Array]) -> tuple[Any, dict[str, Array]]:
        """A model of one node, and its inputs by name.

        What no input of the whole model reaches stays a constant: libraries ask that of a size.
        What subgraphs read from outside is an input, too.
        """
        import onnx

        step = self._steps[name]
        reads = list(_reads(step))
        made = self._made()
        sources = [each for each in reads if each in made]
        given = dict(zip(sources, inputs, strict=True))
        reached = self._reached()
        constants = {key: given.pop(key) for key in sources if key in given and key not in reached}
        helper = onnx.helper
        graph = helper.make_graph(
            [step],
            "alone",
            [
                helper.make_tensor_value_info(
                    each, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
                )
                for each, value in given.items()
            ],
            [onnx.ValueInfoProto(name=each) for each in _outputs_of(step)],
            [
                *(self._weights[each] for each in dict.fromkeys(reads) if each in self._weights),
                *(onnx.numpy_helper.from_array(np.asarray(value, order="C"), key)
                  for key, value in constants.items()),
            ],
        )  # fmt: skip
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        model.functions.extend(self.model.functions)
        return model, given

    def save_alone(
        self, name: str, inputs: Sequence[Array], folder: Path
    ) -> tuple[str, dict[str, Array]]:
        """Write ``layer.onnx``, a model of one node; its file name, and its inputs by name.

        What has no instances along its first axis, such as a shape, becomes a constant.

        Raises
        ------
        UnsupportedOperatorError
            If the node makes no model of its own.
        """
        import onnx

        model, given = self.alone(name, inputs)
        count = next((each.shape[:1] for each in given.values() if each.ndim), ())
        constants = {key: each for key, each in given.items() if each.shape[:1] != count}
        for each in [each for each in model.graph.input if each.name in constants]:
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(constants[each.name], each.name)
            )
            model.graph.input.remove(each)
        try:
            model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
            onnx.checker.check_model(model)
        except Exception as error:  # Classes of its own, by kind of mistake.
            raise UnsupportedOperatorError(f"{name} alone is no ONNX model: {error}") from error
        onnx.save(model, folder / "layer.onnx")
        return "layer.onnx", {key: each for key, each in given.items() if key not in constants}

    def _made(self) -> set[str]:
        made = {each.name for each in self.inputs()}
        return made.union(*map(_outputs_of, self._steps.values()))

    def by_node(self, values: Mapping[str, Array]) -> dict[str, list[Array]]:
        """Values by node; nodes of which one is missing are left out."""
        return {
            name: [values[each] for each in names]
            for name, names in self.values().items()
            if all(each in values for each in names)
        }


def _reads(step: Any) -> Iterator[str]:
    """The names that a node reads, subgraphs included."""
    yield from filter(None, step.input)
    for attribute in step.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {each.name for each in (*graph.input, *graph.initializer)}
            own.update(output for inner in graph.node for output in inner.output)
            reads = {each for inner in graph.node for each in _reads(inner)}
            reads.update(each.name for each in graph.output)
            yield from sorted(reads - own)


def _outputs_of(step: Any) -> list[str]:
    return [each for each in step.output if each]


def _name_of(step: Any) -> str:
    return _outputs_of(step)[0]


def _shape_of(value: Any) -> tuple[int | None, ...]:
    # Exporters write an extent that may be any as a name, as nothing, or as 0 or -1.
    return tuple(
        each.dim_value if each.dim_value > 0 else None for each in value.type.tensor_type.shape.dim
    )


def _dtype_of(value: Any) -> np.dtype[Any]:
    import onnx

    if not value.type.HasField("tensor_type"):
        raise UnsupportedOperatorError(f"the input {value.name!r} is no tensor")
    element: Any = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    dtype: np.dtype[Any] = np.dtype(element)
    if dtype.kind == "O":
        raise UnsupportedOperatorError(
            f"the input {value.name!r} is text; compare the model behind its tokenizer"
        )
    if dtype.kind not in "biufc":
        raise UnsupportedOperatorError(
            f"the input {value.name!r} is {dtype.name}, which no .npz file holds; put a Cast from "
            "float32 before it"
        )
    return dtype
