"""A saved Keras model on the library that ``KERAS_BACKEND`` names; Keras 3.

The graph of a functional or sequential model is run call by call: each is a node, also inside
models that are used as layers. A model of another class is one node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tapml.backends.keras_loading import load_keras
from tapml.backends.runner import Array, Input, Node, to_plain
from tapml.backends.steps import filled, in_steps, step_of
from tapml_targets.errors import InputError, UnsupportedOperatorError

_BATCH = 64


@dataclass
class _Graph:
    """All calls of a model, flat, by node name."""

    nodes: list[Node] = field(default_factory=list)
    calls: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    values: dict[int, tuple[str, int]] = field(default_factory=dict)
    """(node, output) by the identity of a symbolic tensor."""
    symbols: dict[str, list[Any]] = field(default_factory=dict)
    """The symbolic tensors of a node, by its name; of no node inside another model."""

    def add(self, function: Any, prefix: str) -> None:
        depths = sorted(function._nodes_by_depth, reverse=True)
        for node in (each for depth in depths for each in function._nodes_by_depth[depth]):
            if node.is_input or any(id(each) not in self.values for each in node.input_tensors):
                continue
            if _is_graph(node.operation):
                self._descend(node, f"{prefix}{node.operation.name}/")
            else:
                self._call(node, f"{prefix}{node.operation.name}")

    def _call(self, node: Any, name: str) -> None:
        number = sum(each == name or each.startswith(f"{name}#") for each in self.calls)
        name = f"{name}#{number}" if number else name
        sources = tuple(self.values[id(each)] for each in node.input_tensors)
        self.nodes.append(Node(name, type(node.operation).__name__, sources))
        self.calls[name] = (node.operation, node.arguments)
        if "/" not in name:
            self.symbols[name] = list(node.outputs)
        for place, tensor in enumerate(node.outputs):
            self.values[id(tensor)] = (name, place)

    def _descend(self, node: Any, prefix: str) -> None:
        inner = getattr(node.operation, "_functional", None) or node.operation
        before = dict(self.values)
        for symbol, given in zip(inner.inputs, node.input_tensors, strict=True):
            self.values[id(symbol)] = before[id(given)]
        self.add(inner, prefix)
        for symbol, result in zip(node.outputs, inner.outputs, strict=True):
            self.values[id(symbol)] = self.values[id(result)]


class KerasRunner:
    """A Keras model, loaded with the backend of this process."""

    def __init__(self, model: Any, library: str, own_calls: str = "") -> None:
        import keras

        self._keras = keras
        self._model = model
        self._library = library
        self._own_calls = own_calls
        self._function = getattr(model, "_functional", None) or model
        self._graph = _Graph()
        self._inputs = list(model.inputs)
        self._step = step_of(self.inputs())
        for symbol in self._inputs:
            self._graph.values[id(symbol)] = (symbol.name, 0)
        if _is_graph(model):
            self._graph.add(self._function, "")
        else:
            sources = tuple((each.name, 0) for each in self._inputs)
            self._graph.nodes.append(Node(model.name, type(model).__name__, sources))

    def versions(self) -> dict[str, str]:
        """Those of Keras and of the library below it."""
        names = ["keras", self._library, "numpy"]
        return {name: str(import_module(name).__version__) for name in dict.fromkeys(names)}

    def inputs(self) -> list[Input]:
        """The model's, by the names of its input layers."""
        return [
            Input(each.name, tuple(each.shape), self._keras.backend.standardize_dtype(each.dtype))
            for each in self._inputs
        ]

    def nodes(self) -> list[Node]:
        """The calls of layers and operations, from the inputs to the outputs."""
        return self._graph.nodes

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """``model.predict``, which compiles the model if the library does that."""
        found = in_steps(self._predicted, inputs, self._step)
        return dict(zip(self._output_names(len(found)), found, strict=True))

    def _predicted(self, inputs: Mapping[str, Array]) -> list[Array]:
        given = self._model._inputs_struct if hasattr(self._model, "_inputs_struct") else None
        values = [inputs[each.name] for each in self._inputs]
        nested: Any = values[0] if len(values) == 1 else values
        if isinstance(given, dict):
            nested = {key: inputs[symbol.name] for key, symbol in given.items()}
        with self._kept_weights():
            outputs = self._model.predict(nested, batch_size=self._step or _BATCH, verbose=0)
        return [to_plain(each) for each in self._keras.tree.flatten(outputs)]

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        """Every call's outputs, each call run by itself."""
        inputs = filled(inputs, self._step)
        with self._inference():
            values: dict[tuple[str, int], Any] = {
                (symbol.name, 0): self._tensor(inputs[symbol.name]) for symbol in self._inputs
            }
            for node in self._graph.nodes:
                outputs = self._apply(node.name, [values[each] for each in node.sources])
                for place, output in enumerate(outputs):
                    values[node.name, place] = output
            found: dict[str, list[Array]] = {node.name: [] for node in self._graph.nodes}
            for (name, _), value in values.items():
                if name in found:
                    found[name].append(self._array(value))
        return found

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        """See :class:`tapml.backends.runner.RunsPrefixes`."""
        symbols = self._graph.symbols.get(node)
        if symbols is None:
            raise UnsupportedOperatorError(f"{node} lies inside another model")
        part = self._keras.Model(self._inputs, symbols)
        inputs = filled(inputs, self._step)
        values = [inputs[each.name] for each in self._inputs]
        outputs = part.predict(
            values[0] if len(values) == 1 else values, batch_size=self._step or _BATCH, verbose=0
        )
        return [to_plain(each) for each in self._keras.tree.flatten(outputs)]

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        """One call on given values."""
        with self._inference():
            outputs = self._apply(node, [self._tensor(each) for each in inputs])
            return [self._array(each) for each in outputs]

    def save_layer(
        self, node: str, inputs: Sequence[Array], folder: Path
    ) -> tuple[str, dict[str, Array]]:
        """``layer.keras``: see :class:`tapml.backends.runner.SavesLayers`."""
        if node not in self._graph.calls:
            raise UnsupportedOperatorError(f"{node} is the whole model")
        keras = self._keras
        names = ["x"] if len(inputs) == 1 else [f"x{at}" for at in range(len(inputs))]
        symbols = [
            keras.Input(batch_shape=(None, *each.shape[1:]), dtype=str(each.dtype), name=name)
            for name, each in zip(names, inputs, strict=True)
        ]
        try:
            model = keras.Model(symbols, self._apply(node, symbols))
            model.save(folder / "layer.keras")
        except Exception as error:  # Of any class, from a layer that does not take symbols.
            line = str(error).strip().partition("\n")[0][:200]
            raise UnsupportedOperatorError(f"{node} makes no model alone: {line}") from error
        return "layer.keras", dict(zip(names, inputs, strict=True))

    def rebuild(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        """See :class:`tapml.backends.runner.RebuildsLayers`."""
        layer, _ = self._graph.calls.get(node, (None, None))
        kind = type(layer).__name__
        own = import_module(self._own_calls).OWN_CALLS if self._own_calls else {}
        if kind not in own or len(inputs) != 1:
            raise UnsupportedOperatorError(f"{self._library} has no own call for {kind}")
        with self._inference():
            return [to_plain(np.asarray(own[kind](layer, inputs[0])))]

    def _apply(self, name: str, values: Sequence[Any]) -> list[Any]:
        if name not in self._graph.calls:
            result = self._model(values[0] if len(values) == 1 else list(values), training=False)
            return list(self._keras.tree.flatten(result))
        operation, arguments = self._graph.calls[name]
        known = {
            id(symbol): value for symbol, value in zip(arguments.keras_tensors, values, strict=True)
        }
        positional, named = arguments.fill_in(known)
        return list(self._keras.tree.flatten(operation(*positional, **named)))

    @contextmanager
    def _kept_weights(self) -> Iterator[None]:
        """On JAX, ``predict`` takes the weights out of the model, and an error leaves them out."""
        weights = [(each, each.value) for each in self._model.variables]
        try:
            yield
        except BaseException:
            for variable, value in weights:
                if variable._value is None:
                    variable._value = value
            raise

    def _inference(self) -> AbstractContextManager[Any]:
        if self._library == "torch":
            import torch

            return torch.no_grad()
        return nullcontext()

    def _tensor(self, value: Array) -> Any:
        return self._keras.ops.convert_to_tensor(value)

    def _array(self, value: Any) -> Array:
        return to_plain(self._keras.ops.convert_to_numpy(value))

    def _output_names(self, number: int) -> list[str]:
        symbols = getattr(self._model, "outputs", None) or []
        known = [self._graph.values.get(id(each)) for each in symbols]
        names = [f"{each[0]}:{each[1]}" if each and each[1] else each[0] for each in known if each]
        return names if len(set(names)) == number else [f"output {i}" for i in range(number)]


def _is_graph(operation: Any) -> bool:
    inner = getattr(operation, "_functional", None) or operation
    return hasattr(inner, "_nodes_by_depth")


def loader(backend: str, library: str, own_calls: str = "") -> Callable[[Path, str], KerasRunner]:
    """The ``load`` of a backend's folder; `own_calls` is the module that has its ``OWN_CALLS``."""

    def load(model: Path, variant: str) -> KerasRunner:
        """Load a ``.keras`` file.

        Raises
        ------
        InputError
            If the file is no such archive.
        UnsupportedOperatorError
            If it holds code, or custom classes that no file defines.
        """
        del variant
        if os.environ.get("KERAS_BACKEND") != backend:
            raise InputError(f"expected KERAS_BACKEND={backend} in this process")
        return KerasRunner(load_keras(model), library, own_calls)

    return load
