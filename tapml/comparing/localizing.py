"""Finds the layer where a pair of backends parts, with the backends' processes at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tapml.backends.runner import Array, Node
from tapml.backends.steps import in_steps, step_of
from tapml.comparing import fused
from tapml.comparing.amplified import UNITS, apart, is_amplified, sensitivity
from tapml.comparing.coded import first_apart
from tapml.comparing.data import Data
from tapml.comparing.hidden_states import LARGEST_HELD_BYTES, HiddenStates, Holders, Rows
from tapml.comparing.layer_script import write_layer
from tapml.comparing.localization import (
    deviations,
    in_32_bits,
    is_another,
    is_beyond_rounding,
    is_rounding,
    is_taken_otherwise,
    minority,
    outvoted,
    read_places,
    replay_order,
)
from tapml.comparing.processes import BackendFailedError, BackendProcess, Failure
from tapml.comparing.result import PairResult
from tapml.comparing.texts import read_tokens
from tapml.comparing.tokens import without_padding
from tapml.comparing.unstable import Hidden, draws, is_unstable, where_unstable
from tapml.comparing.verdicts import OutputVerdict
from tapml_targets.errors import InputError, UnsupportedOperatorError

_MOST_REPLAYS: Final = 64
_CRASH: Final = "crash"
_NO_LAYER: Final = "; no layer differs on equal inputs"
_BATCH: Final = 8
"""Instances that are looked at together where the most inconsistent one alone shows nothing."""
_LARGEST_BYTES: Final = 1 << 30


class Localizer:
    """Hidden states are extracted once per backend and instances, and shared by the pairs.

    Parameters
    ----------
    processes
        By the backend's name.
    inputs
        All instances, by the input's name.
    data
        The same, as it was given.
    failures
        Of the backends that gave no output.
    layers
        Gets each pair's layer alone, see :func:`~tapml.comparing.layer_script.write_layer`.
    """

    def __init__(
        self,
        processes: Mapping[str, BackendProcess],
        inputs: Mapping[str, Array],
        data: Data,
        failures: Mapping[str, Failure],
        layers: Path | None = None,
    ) -> None:
        self._processes = processes
        self._inputs = inputs
        self._data = data
        self._failures = failures
        self._layers = layers
        self._hidden = HiddenStates(processes, inputs)
        self._single: dict[str, dict[str, Array]] = {}
        self._replayed: dict[tuple[str, str, Holders, Rows], list[Array] | None] = {}
        self._replayed_bytes = 0
        self._read: dict[str, set[int]] = {}
        self._stops: dict[str, Node | fused.Between] = {}

    def forget(self, name: str) -> None:
        """Let go of what is held of a backend: hidden states take gigabytes."""
        self._single.pop(name, None)
        self._stops.pop(name, None)
        self._hidden.forget(name)
        self._replayed = {
            key: each for key, each in self._replayed.items() if name not in (key[0], *key[2])
        }

    def examined(
        self,
        backends: tuple[str, str],
        verdict: OutputVerdict,
        outputs: Mapping[str, Mapping[str, Array]],
    ) -> PairResult:
        """The pair that a verdict is about, localized where its outputs differ.

        A deviation that is too small to trigger does so where a layer differs alone.
        """
        pair = PairResult(backends, verdict.status, verdict.reason, metrics=verdict.metrics,
                          worst=verdict.worst)  # fmt: skip
        if pair.status != "agree":
            return self.inconsistent(pair, outputs)
        near = pair.metrics.get("near")
        if near is None or any(name not in self._processes for name in backends):
            return pair
        try:
            # Many layers of a deep model may deviate by as little.
            found = self._localized(pair, outputs, (verdict.worst,), thorough=False)
        except (BackendFailedError, UnsupportedOperatorError):
            return pair
        if not found.guilty:
            return pair
        metrics = pair.metrics | {"share": near["share"], "triggering": near["instances"]}
        reason = f"{pair.reason}, and {found.layer} differs alone on equal inputs"
        if found.place:
            reason += found.reason.removeprefix(pair.reason)
        return replace(found, status="inconsistent", metrics=metrics, reason=reason)

    def inconsistent(
        self, pair: PairResult, outputs: Mapping[str, Mapping[str, Array]]
    ) -> PairResult:
        """The pair with its localization map, first guilty node, and who is to blame."""
        if stored := [name for name in pair.backends if name not in self._processes]:
            where = f"{' and '.join(stored)} ran elsewhere, so no layer is sought"
            blamed = outvoted(
                {name: list(o.values()) for name, o in outputs.items()}, pair.backends
            )
            return replace(pair, blamed=blamed, reason=f"{pair.reason}; {where}")
        worst = pair.worst or 0
        try:
            found = self._localized(pair, outputs, (worst,))
        except BackendFailedError as error:
            return replace(pair, reason=f"{pair.reason}; no hidden states: {error}")
        if found.status != pair.status or found.guilty:
            return found
        # A library may be wrong about several instances together, and right about each.
        try:
            rows = self._together(pair.backends[0], worst)
            together = self._localized(pair, outputs, rows) if rows else found
            if together.guilty:
                return together
            if amplified := self._amplified(pair, outputs):
                return replace(amplified, graph=found.graph, cleared=found.cleared)
            found = self._narrowed(found, outputs, (worst,))
            return found if found.blamed or found.between else self._by_steps(found, (worst,))
        except BackendFailedError:
            return found

    def _localized(
        self,
        pair: PairResult,
        outputs: Mapping[str, Mapping[str, Array]],
        rows: Rows,
        *,
        thorough: bool = True,
    ) -> PairResult:
        """The pair with what deviates, and what differs alone; not `thorough`: of suspects."""
        first, second = pair.backends
        states = {name: self._hidden.of(name, rows) for name in pair.backends}
        nodes = self._processes[first].nodes
        self._read = read_places(nodes, outputs[first])
        unstable = tuple(
            node.name
            for node in nodes
            if draws(node) or any(is_unstable(runs, node.name) for runs in states.values())
        )
        graph = tuple(deviations(nodes, states[first][0], states[second][0]))
        pair = replace(pair, graph=graph, unstable=unstable)
        missing = fused.unmeasured(nodes, graph, outputs[first])
        candidates = [each.node for each in replay_order(graph, _MOST_REPLAYS)
                      if thorough or each.suspect]  # fmt: skip
        alone = {
            node: self._differ_alone(node, pair, rows)
            for node in [*candidates, *(missing if thorough else ())][:_MOST_REPLAYS]
            if node.name not in unstable
        }
        if thorough and not any(alone.values()):
            constants = fused.constants_around(nodes, graph)[:_MOST_REPLAYS]
            alone |= {node: self._differ_alone(node, pair, rows) for node in constants}
            missing += constants
        guilty = [node for node, differs in alone.items() if differs]
        cleared = tuple(node.name for node, differs in alone.items() if differs is False)
        made = {node.name: [self._alone(name, node, first, rows) or [] for name in pair.backends]
                for node in guilty if node in missing}  # fmt: skip
        pair = replace(pair, graph=fused.with_alone(nodes, graph, made), cleared=cleared)
        order = {node.name: place for place, node in enumerate(nodes)}
        # A constant that differs explains what the layers after it do not.
        guilty.sort(key=lambda node: (not node.sources, order[node.name]))
        if guilty:
            pair = replace(
                pair,
                layer=guilty[0].name,
                layer_kind=guilty[0].kind,
                guilty=tuple(node.name for node in guilty),
                blamed=self._blamed(guilty[0], pair, rows),
                script=self._script(guilty[0], pair, first, rows),
            )
            return self._placed(guilty[0], pair, rows)
        if unstable:
            return replace(
                pair,
                status="nondeterministic",
                reason=f"{where_unstable(nodes, unstable, states)}: other values in every run",
            )
        # Infinite where one side has NaN: JSON's null.
        relative = pair.metrics.get("elementwise", {}).get("largest")
        if relative is not None and is_rounding(relative, [each.unit for each in graph]):
            return replace(
                pair,
                status="agree",
                reason=f"{pair.reason}: rounding, as layers hold 16 or 8 bits and agree alone",
            )
        return self._without_layer(pair, outputs, states, rows)

    def _amplified(
        self, pair: PairResult, outputs: Mapping[str, Mapping[str, Array]]
    ) -> PairResult | None:
        """The pair as one that agrees, where the model carries rounding as far; else None."""
        worst, count = pair.worst or 0, len(self._data)
        sides = [
            {output: each[worst] if each.shape[:1] == (count,) else each
             for output, each in outputs[name].items()}
            for name in pair.backends
        ]  # fmt: skip
        process = self._processes[pair.backends[0]]
        moved = sensitivity(process.run, self._hidden.inputs((worst,)))
        if pair.status != "inconsistent" or moved is None or not is_amplified(apart(*sides), moved):
            return None
        said = (
            f"{pair.reason}; rounding: no layer differs on equal inputs, and the outputs of "
            f"{pair.backends[0]} move by {moved:.1e} of their scale where its inputs move by "
            f"{UNITS} units in the last place"
        )
        return replace(pair, status="agree", reason=said)

    def _together(self, holder: str, worst: int) -> Rows:
        """The most inconsistent instance among others, as many as the model takes; or nothing."""
        fixed = any(step_of(each.inputs) is not None for each in self._processes.values())
        count = len(self._data)
        values = (each for node in self._hidden.of(holder, (worst,))[0].values()
                  for each in node)  # fmt: skip
        if fixed or count < 2 or sum(each.nbytes for each in values) > _LARGEST_BYTES // _BATCH:
            return ()
        start = max(0, min(worst - 1, count - _BATCH))
        return tuple(range(start, min(count, start + _BATCH)))

    def singly(
        self, pair: PairResult, outputs: Mapping[str, Mapping[str, Array]]
    ) -> dict[str, dict[str, Array]] | None:
        """The outputs of an instance a call, where that there are several in one may explain it.

        A model that makes something else of an instance among others, as one that quantizes by the
        largest value of a batch, gives other outputs to a backend that takes an instance a call.

        Returns
        -------
        dict or None
            By backend; None unless both make something else of an instance among others, layer by
            layer, and the outputs of one are those of an instance a call.
        """
        if any(name not in self._processes for name in pair.backends):
            return None
        try:
            rows = self._together(pair.backends[0], pair.worst or 0)
            if not rows or not all(
                self._mixes(name, pair, outputs[name], rows) for name in pair.backends
            ):
                return None
            single = {name: self._single_outputs(name) for name in pair.backends}
        except (BackendFailedError, UnsupportedOperatorError):
            return None
        explained = any(
            not is_beyond_rounding(list(each.values()), list(outputs[name].values()))
            for name, each in single.items()
        )
        return single if explained else None

    def _mixes(self, name: str, pair: PairResult, outputs: Iterable[str], rows: Rows) -> bool:
        """Whether a backend, layer by layer, makes something else of an instance among others."""
        worst = pair.worst or 0
        alone, among = self._hidden.of(name, (worst,))[0], self._hidden.of(name, rows)[0]
        if any(
            is_another(alone.get(output), among.get(output), rows.index(worst), len(rows))
            for output in outputs
        ):
            return True
        # Where it takes an instance a call layer by layer too, a layer alone is given all at once.
        first, second = (self._hidden.of(each, rows)[0] for each in pair.backends)
        graph = deviations(self._processes[pair.backends[0]].nodes, first, second)
        for node in (each.node for each in replay_order(tuple(graph), _MOST_REPLAYS)):
            made = self._alone(name, node, name, rows)
            if made is not None and is_beyond_rounding(among.get(node.name, made), made):
                return True
        return False

    def _single_outputs(self, name: str) -> dict[str, Array]:
        if name not in self._single:
            names: list[str] = []

            def run(step: Mapping[str, Array]) -> list[Array]:
                found = self._processes[name].run(step)
                names[:] = found
                return list(found.values())

            values = in_steps(run, self._inputs, 1)
            _, mask = read_tokens(self._data.arrays)
            self._single[name] = {
                output: without_padding(each, mask)
                for output, each in zip(names, values, strict=True)
            }
        return self._single[name]

    def failed(self, backends: tuple[str, str]) -> PairResult:
        """A pair of which a backend failed: with the node that fails alone, if there is one."""
        broken = [name for name in backends if name in self._failures]
        kinds = [self._failures[name].kind for name in broken]
        if len(broken) == 2 and self._failures[broken[0]] == self._failures[broken[1]]:
            reason = f"both: {self._failures[broken[0]].message}"
        else:
            reason = "; ".join(f"{name}: {self._failures[name].message}" for name in broken)
        if "unsupported" in kinds:
            return PairResult(backends, "unsupported", reason)
        pair = PairResult(backends, kinds[0], reason)
        if any(name not in self._processes for name in backends):
            return pair if len(broken) == 2 else replace(pair, blamed=broken[0])
        if len(broken) == 2:
            nodes = [self._first_failing(name) for name in broken]
            if nodes[0] is None or nodes[1] is None or nodes[0].name != nodes[1].name:
                return pair
        else:
            pair = replace(pair, blamed=broken[0])
            (healthy,) = set(backends) - {broken[0]}
            found = self._stop_of(broken[0], healthy)
            if isinstance(found, tuple):
                return replace(pair, between=found)
            nodes = [found]
        if nodes[0] is None:
            return pair
        pair = replace(pair, layer=nodes[0].name, layer_kind=nodes[0].kind, guilty=(nodes[0].name,))
        if len(broken) == 2:
            return pair
        return replace(pair, script=self._script(nodes[0], pair, healthy, (0,)))

    def _alone(self, name: str, node: Node, holder: str, rows: Rows) -> list[Array] | None:
        """What a backend makes of a node on the holder's values; None where it cannot."""
        holders = self._hidden.holders(node, holder, rows)
        if holders is None:
            return None
        # By all whose values these are: a later pair may read what this holder lacks elsewhere.
        key = name, node.name, holders, rows
        if key not in self._replayed:
            try:
                values = self._hidden.sources(node, holder, rows)
                self._replayed[key] = self._processes[name].replay(node.name, values or ())
            except BackendFailedError:
                self._replayed[key] = None
            made = self._replayed[key]
            self._replayed_bytes += sum(each.nbytes for each in made or ())
            if self._replayed_bytes > LARGEST_HELD_BYTES:
                self._replayed, self._replayed_bytes = {key: made}, 0
        return self._replayed[key]

    def _placed(self, node: Node, pair: PairResult, rows: Rows) -> PairResult:
        """The pair with the fault's place: the accused backend's interface, or its library."""
        places = {}
        for name in [pair.blamed] if pair.blamed else pair.backends:
            (other,) = set(pair.backends) - {name}
            own = self._rebuilt(name, node, pair.backends[0], rows)
            made, right = (
                self._alone(each, node, pair.backends[0], rows) for each in (name, other)
            )
            if own is None or made is None or right is None:
                continue
            if is_beyond_rounding(own, made) and not is_beyond_rounding(own, right):
                places[name] = "interface"
            elif pair.blamed and is_beyond_rounding(own, right):
                places[name] = "" if is_beyond_rounding(own, made) else "library"
        named = {name: place for name, place in places.items() if place}
        if len(named) != 1:
            return pair
        ((name, place),) = named.items()
        said = (
            "the layer from its library's own calls is right, so the interface is at fault"
            if place == "interface"
            else "the layer from its library's own calls is wrong too, so the library is at fault"
        )
        return replace(pair, place=place, reason=f"{pair.reason}; {name}: {said}")

    def _rebuilt(self, name: str, node: Node, holder: str, rows: Rows) -> list[Array] | None:
        values = self._hidden.sources(node, holder, rows)
        try:
            return None if values is None else self._processes[name].rebuild(node.name, values)
        except BackendFailedError:
            return None

    def _script(self, node: Node, pair: PairResult, holder: str, rows: Rows) -> str:
        """The script that shows a node alone on the pair, on what the holder's run gave it."""
        values = None if self._layers is None else self._hidden.sources(node, holder, rows)
        if self._layers is None or values is None:
            return ""
        found = write_layer(self._layers, node, values, self._processes[holder], pair.backends)
        return "" if found is None else str(found)

    def _differ_alone(self, node: Node, pair: PairResult, rows: Rows) -> bool | None:
        """None where one of the two cannot run it."""
        first, second = (self._alone(name, node, pair.backends[0], rows) for name in pair.backends)
        if first is None or second is None:
            return None
        return is_beyond_rounding(self._counted(node, first), self._counted(node, second))

    def _counted(self, node: Node, made: Sequence[Array]) -> list[Array]:
        """The outputs that something reads: libraries fill the others as they like.

        Which of equal values comes first, for example, is in the second output of a selection.
        """
        read = self._read.get(node.name)
        kept = [each for at, each in enumerate(made) if read is None or at in read]
        return kept if node.sources else list(map(in_32_bits, kept))

    def _blamed(self, node: Node, pair: PairResult, rows: Rows) -> str:
        results = {
            name: self._alone(name, node, pair.backends[0], rows) for name in self._healthy()
        }
        ran = {name: self._counted(node, each) for name, each in results.items()
               if each is not None}  # fmt: skip
        return outvoted(ran, pair.backends)

    def _without_layer(
        self,
        pair: PairResult,
        outputs: Mapping[str, Mapping[str, Array]],
        states: Mapping[str, tuple[Hidden, ...]],
        rows: Rows,
    ) -> PairResult:
        """No layer differs alone: perhaps a compiled run differs from its own layers."""
        compiled = self._compiled_otherwise(pair, outputs, states, rows)
        if len(compiled) == 1:
            ((name, _),) = compiled
            reason = f"{pair.reason}; {name} compiled differs from {name} layer by layer"
            return replace(pair, blamed=name, reason=reason)
        nodes = self._processes[pair.backends[0]].nodes
        if not compiled and (between := fused.around(nodes, pair.graph)):
            return replace(
                pair, between=between, blamed=self._blamed_at(between, pair, rows),
                reason=f"{pair.reason}; a backend has no values of the layers between "
                f"{between[0]} and {between[1]}, where it starts",
            )  # fmt: skip
        return replace(pair, reason=f"{pair.reason}{_NO_LAYER}")

    def _by_steps(self, pair: PairResult, rows: Rows) -> PairResult:
        """The pair with the first layer that rounds codes of 8 bits otherwise, if one does."""
        holder = pair.backends[0]
        found = first_apart(pair.graph, pair.backends, self._healthy(),
                            lambda name, node: self._alone(name, node, holder, rows))  # fmt: skip
        if found is None:
            return pair
        node, blamed = found
        said = f"{pair.reason.removesuffix(_NO_LAYER)}; {node.name} rounds 8 bits otherwise"
        return replace(
            pair, layer=node.name, layer_kind=node.kind, guilty=(node.name,), blamed=blamed,
            cleared=tuple(each for each in pair.cleared if each != node.name), reason=said,
            script=self._script(node, pair, holder, rows),
        )  # fmt: skip

    def _compiled_otherwise(
        self,
        pair: PairResult,
        outputs: Mapping[str, Mapping[str, Array]],
        states: Mapping[str, tuple[Hidden, ...]],
        rows: Rows,
    ) -> list[tuple[str, str]]:
        """The backends whose compiled run differs from their own layers, each with an output."""
        compiled, units = [], [each.unit for each in pair.graph]
        for name in pair.backends:
            for output, values in outputs[name].items():
                if values.shape[:1] != (len(self._data),):
                    continue  # An output over all instances has none of its own.
                own = states[name][0].get(output, ())
                if fused.is_compiled_otherwise(values[list(rows)], own, units):
                    compiled.append((name, output))
                    break
        return compiled

    def _narrowed(
        self, pair: PairResult, outputs: Mapping[str, Mapping[str, Array]], rows: Rows
    ) -> PairResult:
        """The layers between which a compiled run parts from its own layers."""
        states = {name: self._hidden.of(name, rows) for name in pair.backends}
        compiled = self._compiled_otherwise(pair, outputs, states, rows)
        if len(compiled) != 1:
            return pair
        ((name, output),) = compiled
        own = states[name][0]

        def differs(node: Node) -> bool | None:
            if node.name not in own:
                return None
            try:
                made = self._processes[name].prefix(node.name, self._hidden.inputs(rows))
            except BackendFailedError:
                return None
            return is_beyond_rounding(
                self._counted(node, made), self._counted(node, own[node.name])
            )

        nodes = self._processes[name].nodes
        named = output in {node.name for node in nodes}
        last = output if named else output.rpartition(":")[0]
        found = fused.narrowed(nodes, last, differs)
        between = found and found[0]
        where = f", as far as {between[1]} and not as far as {between[0]}" if between else ""
        return replace(pair, between=between, reason=f"{pair.reason}{where}")

    def _blamed_at(self, between: fused.Between, pair: PairResult, rows: Rows) -> str:
        """Whom a majority disagrees with behind layers that are fused, and agrees with before."""
        before, after = between
        found = {name: self._hidden.of(name, rows)[0] for name in self._healthy()}
        if minority({name: each[before] for name, each in found.items() if before in each}):
            return ""
        made = {name: each[after] for name, each in found.items() if after in each}
        return outvoted(made, pair.backends)

    def _healthy(self) -> list[str]:
        return [name for name in self._processes if name not in self._failures]

    def _first_failing(self, broken: str) -> Node | None:
        """The first node that fails where every node reads what this backend made before it."""
        values: dict[tuple[str, int], Array] = {
            (name, 0): each for name, each in self._hidden.inputs((0,)).items()
        }
        for node in self._processes[broken].nodes:
            if any(each not in values for each in node.sources):
                return None
            try:
                given = [values[each] for each in node.sources]
                made = self._processes[broken].replay(node.name, given)
            except BackendFailedError as error:
                return None if error.failure.kind == "unsupported" else node
            values |= {(node.name, place): each for place, each in enumerate(made)}
        return None

    def _stop_of(self, broken: str, healthy: str) -> Node | fused.Between | None:
        """Where a backend fails: a node, or two around it. What is found counts for every pair."""
        if broken not in self._stops:
            alone, sure = self._failing_node(broken, healthy)
            found = None if sure else self._where_failing(broken)
            found = found if isinstance(found, Node) or alone is None else alone
            if found is None:
                return None
            self._stops[broken] = found
        return self._stops[broken]

    def _failing_node(self, broken: str, healthy: str) -> tuple[Node | None, bool]:
        """The node that fails alone on the values of a healthy backend, and whether that is sure.

        The first that fails at the same place as the whole model; else the first that fails, which
        is not sure; else the first whose result a later one could not take.
        """
        if healthy in self._failures or not self._processes[broken].inputs:
            return None, False
        first = wrong = None
        states = self._hidden.of(healthy, (0,))[0]
        for node in self._processes[healthy].nodes:
            values = self._hidden.sources(node, healthy, (0,))
            if values is None:
                continue
            try:
                made = self._processes[broken].replay(node.name, values)
                sides = [self._counted(node, each) for each in (states.get(node.name, made), made)]
                if wrong is None and is_beyond_rounding(*sides) and is_taken_otherwise(*sides):
                    wrong = node
            except BackendFailedError as error:
                whole = self._failures[broken]
                # A crash in a compiled graph and one of a layer have other lines of Python.
                if error.failure.place == whole.place or error.failure.kind == whole.kind == _CRASH:
                    return node, True
                if error.failure.kind != "unsupported":
                    first = first or node
            except InputError:
                continue
        return (first, False) if first else (wrong, wrong is not None)

    def _where_failing(self, broken: str) -> Node | fused.Between | None:
        """The first node as far as which the model fails as the whole does, or two around it."""
        process, whole = self._processes[broken], self._failures[broken]

        def fails(node: Node) -> bool | None:
            try:
                process.prefix(node.name, self._hidden.inputs((0,)))
            except BackendFailedError as error:
                return True if error.failure.place == whole.place else None
            return False

        if whole.kind not in ("error", _CRASH):
            return None
        return fused.first_failing(process.nodes, fails)
