"""Runs a model by its parts: the whole, the whole with every value as an output, one node alone.

A library that takes a graph and gives a function needs nothing but ``prepare``: what is made of
an ONNX model (:mod:`tapml.backends.onnx_graph`) or of a torch program
(:mod:`tapml.backends.torch_graph`) is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from tapml.backends.runner import Array, Input, Node, to_plain
from tapml.backends.steps import filled, in_steps, step_of
from tapml_targets.errors import UnsupportedOperatorError

PROGRAM_FOLDER: Final = "config.json"
"""The file that tells the folder of a torch module or a language model, see
:meth:`Description.reads`."""
NEEDS: Final = ("numpy", "msgspec>=0.19,<1", "transformers>=5.23,<6")
"""What reading such a folder takes, see :class:`tapml.backends.description.Description`."""
Prepared: TypeAlias = Callable[[Mapping[str, Array]], Sequence[Any]]
"""Outputs of a part, in its order, for arrays by the names of its inputs."""


class Graph(Protocol):
    """A model as nodes, and parts made of it."""

    @property
    def outputs(self) -> list[str]:
        """The names of the model's outputs."""

    def inputs(self) -> list[Input]:
        """See :class:`tapml.backends.runner.Runner`."""

    def nodes(self) -> list[Node]:
        """See :class:`tapml.backends.runner.Runner`."""

    def whole(self) -> Any:
        """The part that is the model."""

    def with_all_outputs(self, *, computed: bool = False) -> Any:
        """The model with every value as an output; `computed`: only those that inputs reach."""

    def until(self, name: str) -> Any:
        """The model as far as a node, whose values are the outputs."""

    def alone(self, name: str, inputs: Sequence[Array]) -> tuple[Any, dict[str, Array]]:
        """A part of one node, and its inputs by name."""

    def save_alone(
        self, name: str, inputs: Sequence[Array], folder: Path
    ) -> tuple[str, dict[str, Array]]:
        """Write a model of one node; see :class:`tapml.backends.runner.SavesLayers`."""

    def names_of(self, part: Any) -> list[str]:
        """The names of a part's outputs."""

    def by_node(self, values: Mapping[str, Array]) -> dict[str, list[Array]]:
        """Values by node; nodes of which one is missing are left out."""


def graph_of(model: Path) -> Graph:
    """The graph of an ``.onnx`` file or of a torch module's folder."""
    if model.is_dir():
        try:
            from tapml.backends.torch_graph import TorchGraph
        except ModuleNotFoundError as error:
            raise UnsupportedOperatorError(
                f"{model.name} is a torch module, and this environment has no {error.name}"
            ) from error
        return TorchGraph(model)
    from tapml.backends.onnx_graph import OnnxGraph

    return OnnxGraph(model)


class PartsRunner:
    """A :class:`tapml.backends.runner.Runner` over a graph.

    Parameters
    ----------
    graph
        The model.
    prepare
        Makes a function of a part for inputs of these shapes.
    versions
        See :class:`tapml.backends.runner.Runner`.
    step
        Instances of one call where the model leaves that free; None for all at once.
    """

    def __init__(
        self,
        graph: Graph,
        prepare: Callable[[Graph, Any, Mapping[str, Array]], Prepared],
        versions: Callable[[], dict[str, str]],
        step: int | None = None,
    ) -> None:
        self._graph = graph
        self._prepare = prepare
        self._step = step_of(graph.inputs())
        self._free_step = step
        self._whole: dict[tuple[tuple[int, ...], ...], Prepared] = {}
        self.versions = versions
        self.inputs = graph.inputs
        self.nodes = graph.nodes

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, in calls of as many instances as the model takes."""
        found = in_steps(self._run_whole, inputs, self._step or self._free_step)
        return dict(zip(self._graph.outputs, found, strict=True))

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        """All values, as outputs of one graph: what a library fuses otherwise is kept apart."""
        part = self._graph.with_all_outputs(computed=True)
        values = self._made(part, inputs)
        return self._graph.by_node(dict(zip(self._graph.names_of(part), values, strict=True)))

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        """See :class:`tapml.backends.runner.RunsPrefixes`."""
        return self._made(self._graph.until(node), inputs)

    def _made(self, part: Any, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs of a part that reads what the model does."""
        prepared: list[Prepared] = []

        def run(step: Mapping[str, Array]) -> list[Array]:
            if not prepared:
                prepared.append(self._prepare(self._graph, part, step))
            return [to_plain(each) for each in prepared[0](step)]

        # Of a model that fixes their number all rows stay: its nodes take no fewer alone.
        given = filled(inputs, self._step)
        return in_steps(run, given, self._step or self._free_step)

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        """One node as a graph of its own."""
        part, given = self._graph.alone(node, inputs)
        return [to_plain(each) for each in self._prepare(self._graph, part, given)(given)]

    def save_layer(
        self, node: str, inputs: Sequence[Array], folder: Path
    ) -> tuple[str, dict[str, Array]]:
        """See :class:`tapml.backends.runner.SavesLayers`."""
        return self._graph.save_alone(node, inputs, folder)

    def _run_whole(self, inputs: Mapping[str, Array]) -> list[Array]:
        shapes = tuple(each.shape for each in inputs.values())
        if shapes not in self._whole:
            self._whole[shapes] = self._prepare(self._graph, self._graph.whole(), inputs)
        return [to_plain(each) for each in self._whole[shapes](inputs)]
