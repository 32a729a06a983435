"""What a comparison found, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import floor, inf, log10
from typing import Any, Final

from tapml.comparing.localization import NodeDeviation
from tapml.comparing.processes import Failure
from tapml_targets.errors import EXIT_MISMATCH

FORMAT: Final = "tapml-compare/1"
NOT_FAULTS: Final = ("agree", "unsupported", "nondeterministic")
"""Statuses that accuse nobody."""


@dataclass(frozen=True)
class BackendResult:
    """One backend: its versions, and the failure that ended its run, if any."""

    name: str
    title: str
    versions: dict[str, str]
    seconds: float
    failure: Failure | None = None


@dataclass(frozen=True)
class PairResult:
    """Two backends.

    Attributes
    ----------
    backends
        Their names.
    status
        ``agree``, ``inconsistent``, ``nan``, ``shape``; ``nondeterministic`` where a layer gives
        other values in every run; or the kind of the failure of one of them: ``crash``, ``hang``,
        ``out of memory``, ``error``, ``unsupported``.
    reason
        In a sentence.
    layer, layer_kind
        The first guilty node; empty where no node alone is guilty.
    blamed
        The backend that a majority disagrees with; empty without a majority.
    metrics
        See :func:`tapml.comparing.verdicts.judge`.
    worst
        The most inconsistent instance; None where nothing was compared.
    guilty
        All nodes that differ alone on equal inputs, in graph order.
    cleared
        Nodes that deviate in the model and agree alone on equal inputs; others were not run alone.
    unstable
        Nodes that differ between two runs on one backend.
    graph
        The execution deviation graph; empty for a pair that agrees.
    script
        The path of a script that shows the layer alone, where one was written.
    between
        Where no node is guilty, the last that is right and the first that is not, with layers
        between them, or at the second, that one backend fused.
    place
        ``interface`` or ``library``: where the fault of the layer lies, as the layer rebuilt from
        the library's own calls says; empty where that is not known.
    """

    backends: tuple[str, str]
    status: str
    reason: str
    layer: str = ""
    layer_kind: str = ""
    blamed: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    worst: int | None = None
    guilty: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    graph: tuple[NodeDeviation, ...] = ()
    script: str = ""
    between: tuple[str, str] | None = None
    place: str = ""


def where(pair: PairResult) -> str:
    """In words, where a pair parts: ``conv1 (Conv)``, ``between conv1 and norm1`` or ``-``."""
    if pair.between:
        return "between {} and {}".format(*pair.between)
    return f"{pair.layer} ({pair.layer_kind})" if pair.layer else "-"


@dataclass(frozen=True)
class Cluster:
    """Pairs that show one thing: they part at one layer, by as much, on the same instances.

    The paper left clusters to people. Its first localized function is the layer, and its ratio the
    decade of the layer's deviation over its scale.

    Attributes
    ----------
    status, layer, layer_kind, blamed
        As of the pairs.
    relative_deviation
        ``1e-2``; empty where nothing was measured.
    instances
        Those that trigger, as ranges: ``0-3, 7``.
    pairs
        The backends of each.
    """

    status: str
    layer: str
    layer_kind: str
    blamed: str
    relative_deviation: str
    instances: str
    pairs: tuple[tuple[str, str], ...]


def decade(deviation: float, scale: float) -> int | None:
    """The power of ten of a deviation over its scale; None where either is zero or not finite."""
    if not (0 < deviation < inf and 0 < scale < inf):
        return None
    return floor(log10(deviation / scale))


@dataclass(frozen=True)
class Comparison:
    """What was compared, the result of every pair, and the arrays that no input is named as."""

    model: str
    instances: int
    labels: str
    backends: tuple[BackendResult, ...]
    pairs: tuple[PairResult, ...]
    unread: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """``agree`` or ``inconsistent``."""
        return "agree" if all(each.status in NOT_FAULTS for each in self.pairs) else "inconsistent"

    @property
    def failures(self) -> list[tuple[Failure, str, list[str]]]:
        """Every failure once: the failure, the layer, and the backends that failed so."""
        layers = {pair.blamed: pair.layer for pair in self.pairs if pair.layer}
        found: dict[tuple[str, str, str], tuple[Failure, str, list[str]]] = {}
        for each in self.backends:
            if each.failure is not None:
                layer = layers.get(each.name, "")
                key = each.failure.kind, each.failure.place, layer
                found.setdefault(key, (each.failure, layer, []))[2].append(each.name)
        return list(found.values())

    @property
    def clusters(self) -> list[Cluster]:
        """What the pairs that accuse somebody have in common, the largest first."""
        found: dict[tuple[str, str, str, str, str, str], list[tuple[str, str]]] = {}
        for pair in self.pairs:
            if pair.status not in NOT_FAULTS:
                power = next((decade(each.deviation, each.scale) for each in pair.graph
                              if each.node.name == pair.layer), None)  # fmt: skip
                key = (pair.status, pair.layer, pair.layer_kind, pair.blamed,
                       "" if power is None else f"1e{power}",
                       pair.metrics.get("triggering", ""))  # fmt: skip
                found.setdefault(key, []).append(pair.backends)
        clusters = [Cluster(*key, tuple(pairs)) for key, pairs in found.items()]
        return sorted(clusters, key=lambda each: -len(each.pairs))

    @property
    def exit_code(self) -> int:
        """0 where all pairs agree, else 1."""
        return 0 if self.status == "agree" else EXIT_MISMATCH

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "model": self.model,
            "status": self.status,
            "instances": self.instances,
            "labels": self.labels,
            "unread": list(self.unread),
            "backends": [asdict(each) for each in self.backends],
            "failures": [
                {**asdict(failure), "layer": layer or None, "backends": names}
                for failure, layer, names in self.failures
            ],
            "clusters": [
                {name: value or None for name, value in asdict(each).items()}
                for each in self.clusters
            ],
            "pairs": [_pair(each) for each in self.pairs],
        }


def _pair(pair: PairResult) -> dict[str, Any]:
    return {
        "backends": list(pair.backends),
        "status": pair.status,
        "reason": pair.reason,
        "layer": pair.layer or None,
        "layer_kind": pair.layer_kind or None,
        "between": pair.between and list(pair.between),
        "blamed": pair.blamed or None,
        "metrics": pair.metrics,
        "worst_instance": pair.worst,
        "guilty": list(pair.guilty),
        "cleared": list(pair.cleared),
        "unstable": list(pair.unstable),
        "script": pair.script or None,
        "place": pair.place or None,
        "nodes": [
            {
                "name": each.node.name,
                "kind": each.node.kind,
                "sources": [name for name, _ in each.node.sources],
                "deviation": each.deviation,
                "scale": each.scale,
                "rate": each.rate,
                "highlighted": each.highlighted,
                "suspect": each.suspect,
            }
            for each in pair.graph
        ],
    }
