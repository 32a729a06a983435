"""Names values and call sites after nodes of FX or ONNX, or after a Relax module's variables."""

from __future__ import annotations

from collections.abc import Mapping

from tapml.importing.flatten import CallSite
from tapml.importing.lowering import LoweredEntry
from tapml.importing.origins import layer_of
from tapml.importing.translate import NodeNames
from tapml.plan.graph_plan import Origin


class NamedGuide:
    """Names values after nodes and gives call sites the origins of the fused operations."""

    def __init__(
        self, origins: Mapping[str, Origin], names: NodeNames, lowered: LoweredEntry
    ) -> None:
        self._origins = origins
        self._names = names
        self._lowered = lowered
        self._following = _following(lowered, names)

    def site(self, index: int, callee: str) -> CallSite:
        """The call site of the `index`-th call."""
        provenance = self._lowered.provenance[index]
        nodes: dict[str, None] = {}
        for variable in provenance.variables:
            for part in self._lowered.contractions.get(variable, (variable,)):
                node = self._names.node(part) or self._following[index]
                if node is not None:
                    nodes[node] = None
        origins: tuple[Origin, ...] = tuple(self._origins[node] for node in nodes)
        path = origins[-1].module_path if origins else ""
        return CallSite(
            results=tuple(self.view(variable) for variable in provenance.results),
            origins=origins,
            layer=layer_of(path),
            path=path.removeprefix("model."),
        )

    def view(self, variable: str) -> str:
        """The name of the value that a variable becomes."""
        return self._names.value(variable)


def _following(lowered: LoweredEntry, names: NodeNames) -> list[str | None]:
    """For each call, the node of the first named variable at or after it.

    If a pass splits a call in two, only the second keeps the name.
    """
    found: list[str | None] = []
    following: str | None = None
    for provenance in reversed(lowered.provenance):
        for variable in reversed(provenance.variables):
            following = names.node(variable) or following
        found.append(following)
    return found[::-1]


class RelaxGuide:
    """Names values after a Relax module's variables, the only origin it has."""

    def __init__(self, lowered: LoweredEntry) -> None:
        self._lowered = lowered

    def site(self, index: int, callee: str) -> CallSite:
        """The call site of the `index`-th call."""
        return CallSite(results=self._lowered.provenance[index].results)

    def view(self, variable: str) -> str:
        """The name of the value that a variable becomes."""
        return variable
