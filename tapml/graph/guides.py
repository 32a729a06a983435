"""What values and call sites are called: after FX nodes, or after a Relax module's variables."""

from __future__ import annotations

from tapml.graph.exporting import ExportedEntry
from tapml.graph.flatten import CallSite
from tapml.graph.lowering import LoweredEntry
from tapml.graph.origins import layer_of
from tapml.graph.plan import Origin
from tapml.graph.translate import NodeNames


class TorchGuide:
    """Names values after FX nodes and gives call sites the origins of what was fused in them."""

    def __init__(self, exported: ExportedEntry, names: NodeNames, lowered: LoweredEntry) -> None:
        self._origins = exported.origins
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
        """Name of the value that a variable becomes."""
        return self._names.value(variable)


def _following(lowered: LoweredEntry, names: NodeNames) -> list[str | None]:
    """For each call the node of the first named variable from it on.

    Where a pass makes two calls of one, the last keeps the name and the first gets one of no node.
    """
    found: list[str | None] = []
    following: str | None = None
    for provenance in reversed(lowered.provenance):
        for variable in reversed(provenance.variables):
            following = names.node(variable) or following
        found.append(following)
    return found[::-1]


class RelaxGuide:
    """Names values after the variables of a Relax module, which has no other origins."""

    def __init__(self, lowered: LoweredEntry) -> None:
        self._lowered = lowered

    def site(self, index: int, callee: str) -> CallSite:
        """The call site of the `index`-th call."""
        return CallSite(results=self._lowered.provenance[index].results)

    def view(self, variable: str) -> str:
        """Name of the value that a variable becomes."""
        return variable
