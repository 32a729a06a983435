"""What the search for a layer does once, how much it holds, and what it survives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tapml.backends.runner import Array, Input, Node
from tapml.comparing import hidden_states, localizing
from tapml.comparing.data import Data
from tapml.comparing.localization import read_places
from tapml.comparing.localizing import Localizer
from tapml.comparing.processes import BackendFailedError, BackendProcess, Failure
from tapml.comparing.result import PairResult
from tapml.comparing.verdicts import OutputVerdict

_COUNT = 12
_X = np.random.default_rng(0).normal(size=(_COUNT, 4)).astype(np.float32)
_CRASH = Failure("crash", "the process was killed by SIGSEGV", "line 1")


@dataclass
class Chain:
    """A backend's process whose model adds 1 in every layer; the layers `wrong` add 2."""

    layers: int = 3
    wrong: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    compiled_wrong: tuple[str, ...] = ()
    fails_elsewhere: tuple[str, ...] = ()
    """Layers that fail alone, at another line than the model."""
    no_ends: tuple[str, ...] = ()
    """Layers at which the model cannot end."""
    end: int = 0
    """A constant of the model, as this backend writes it."""
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = ["x", *(f"layer{at}" for at in range(self.layers))]
        self.inputs = [Input("x", (None, 4), "float32")]
        self.nodes = [Node(name, "Add", ((before, 0),))
                      for before, name in pairwise(names)]  # fmt: skip
        self.nodes.insert(0, Node("end", "Constant"))

    def _added(self, name: str, value: Array) -> Array:
        return value + np.float32(1 + (name in self.wrong))

    def _called(self, job: str, name: str = "") -> None:
        self.calls.append(f"{job} {name}".strip())
        if any(each in self.fails for each in (job, name, f"{job} {name}")):
            raise BackendFailedError(_CRASH)

    def hidden(self, inputs: Mapping[str, Array]) -> tuple[dict[str, list[Array]], ...]:
        self._called("hidden")
        found, value = {"end": [np.array([self.end])]}, inputs["x"]
        for node in self.nodes[1:]:
            value = self._added(node.name, value)
            if node.name not in self.fused:
                found[node.name] = [value]
        return found, {}

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        self._called("replay", node)
        if node in self.fails_elsewhere:
            raise BackendFailedError(Failure("error", "a subgraph", "line 9"))
        return [self._added(node, inputs[0]) if inputs else np.array([self.end])]

    def rebuild(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        raise BackendFailedError(Failure("unsupported", f"{node} is not rebuilt"))

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        self._called("prefix", node)
        if node in self.no_ends:
            raise BackendFailedError(Failure("unsupported", "no end"))
        compiled = Chain(self.layers, self.wrong + self.compiled_wrong)
        return compiled.hidden(inputs)[0][node]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        last = self.nodes[-1].name
        return {last: self.prefix(last, inputs)[0]}

    def output(self) -> dict[str, Array]:
        return self.run({"x": _X})


@dataclass
class Logistic(Chain):
    """Every layer takes x to 4x(1 - x), which is chaos; `wrong` multiply by 3.9."""

    factored: bool = True

    def _added(self, name: str, value: Array) -> Array:
        four = np.float32(3.9 if name in self.wrong else 4)
        return four * value * (1 - value) if self.factored else four * value - four * value**2

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        return self.hidden(inputs)[0][node]


@dataclass
class Coded(Chain):
    """The first layer makes codes of 8 bits; what is compiled is `off` by a share of its values.

    `cut`: the codes are rounded down.
    """

    off: float = 0.0
    cut: bool = False

    def _added(self, name: str, value: Array) -> Array:
        if name == "layer0":
            steps = 16 * value + 200
            value = (np.floor(steps) if self.cut else np.rint(steps)).astype(np.uint8)
            return value
        return super()._added(name, value.astype(np.float32))

    def prefix(self, node: str, inputs: Mapping[str, Array]) -> list[Array]:
        (made,) = self.hidden(inputs)[0][node]
        return [(made * (1 + self.off)).astype(made.dtype)]


def _localizer(chains: Mapping[str, Chain], failures: dict[str, Failure] | None = None) -> Any:
    processes: Any = chains
    found: Mapping[str, BackendProcess] = processes
    return Localizer(found, {"x": _X}, Data({"x": _X}), failures or {})


def _found(localizer: Any, chains: Mapping[str, Chain], pair: tuple[str, str]) -> PairResult:
    outputs = {name: each.output() for name, each in chains.items()}
    found: PairResult = localizer.inconsistent(
        PairResult(pair, "inconsistent", "", metrics={"elementwise": {"largest": 1.0}}, worst=2),
        outputs,
    )
    return found


def test_hidden_states_and_replays_are_shared_by_all_pairs() -> None:
    chains = {"a": Chain(), "b": Chain(), "c": Chain(wrong=("layer1",))}
    localizer = _localizer(chains)
    for pair in (("a", "c"), ("b", "c")):
        found = _found(localizer, chains, pair)
        assert (found.layer, found.blamed, found.guilty) == ("layer1", "c", ("layer1",))
        assert found.cleared == ("layer2",)
    assert [each.calls.count("hidden") for each in chains.values()] == [1, 1, 1]
    # Once on the values of a, and once on those of b, which another pair holds.
    assert chains["c"].calls.count("replay layer1") == 2


def test_of_many_deviating_layers_64_are_run_alone() -> None:
    chains = {"a": Chain(200), "b": Chain(200, wrong=tuple(f"layer{at}" for at in range(200)))}
    found = _found(_localizer(chains), chains, ("a", "b"))
    assert found.layer == "layer0" and len(found.guilty) == 64
    assert sum(each.startswith("replay") for each in chains["b"].calls) == 64


def test_hidden_states_beyond_the_limit_are_let_go_and_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (localizing, hidden_states):
        monkeypatch.setattr(module, "LARGEST_HELD_BYTES", 1)
    chains = {name: Chain(wrong=("layer2",) * (name == "c")) for name in "abc"}
    localizer = _localizer(chains)
    for pair in (("a", "b"), ("a", "c"), ("b", "c")):
        _found(localizer, chains, pair)
    assert len(localizer._hidden.held) == 2 and len(localizer._replayed) <= 1
    assert chains["b"].calls.count("hidden") > 1
    localizer.forget("c")
    assert all(name != "c" for name, _ in localizer._hidden.held)


def test_several_instances_are_looked_at_where_one_shows_nothing_and_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chains = {"a": Chain(), "b": Chain()}
    found = _found(_localizer(chains), chains, ("a", "b"))
    assert found.layer == "" and chains["a"].calls.count("hidden") == 2
    monkeypatch.setattr(localizing, "_LARGEST_BYTES", 1)
    fewer = {"a": Chain(), "b": Chain()}
    _found(_localizer(fewer), fewer, ("a", "b"))
    assert fewer["a"].calls.count("hidden") == 1


def test_a_model_that_fixes_the_number_of_instances_gets_as_many() -> None:
    chains = {"a": Chain(), "b": Chain(wrong=("layer0",))}
    for each in chains.values():
        each.inputs = [Input("x", (4, 4), "float32")]
    localizer = _localizer(chains)
    assert _found(localizer, chains, ("a", "b")).layer == "layer0"
    assert localizer._hidden.inputs((2,))["x"].shape == (4, 4)


def test_what_one_backend_fused_away_is_read_from_another() -> None:
    chains = {"a": Chain(fused=("layer0",)), "b": Chain(wrong=("layer1",))}
    assert _found(_localizer(chains), chains, ("a", "b")).layer == "layer1"


def test_a_wrong_layer_that_one_side_fused_away_is_named_or_the_layers_around_it() -> None:
    for fails, expected in (((), ("layer1", None)), (("layer1",), ("", ("layer0", "layer2")))):
        chains = {
            "a": Chain(4, fused=("layer1",), fails=fails),
            "b": Chain(4, wrong=("layer1",)),
            "c": Chain(4),
        }
        found = _found(_localizer(chains), chains, ("a", "b"))
        assert (found.layer, found.between) == expected
        assert found.blamed == "b" and (found.graph[2].node.name == "layer1") == (not fails)
        # The published rule has no hidden state of it.
        assert not any(each.highlighted for each in found.graph if each.node.name == "layer1")


def test_a_compiled_run_that_parts_from_its_own_layers_is_narrowed_down() -> None:
    chains = {"a": Chain(40), "b": Chain(40, compiled_wrong=("layer23",), fails=("layer20",))}
    found = _found(_localizer(chains), chains, ("a", "b"))
    assert (found.blamed, found.layer, found.between) == ("b", "", ("layer22", "layer23"))
    assert sum(each.startswith("prefix") for each in chains["b"].calls) < 9


@pytest.mark.parametrize(("off", "blamed"), [(0.01, ""), (0.2, "a")])
def test_a_compiled_run_that_rounds_8_bits_otherwise_is_not_blamed(off: float, blamed: str) -> None:
    chains = {"a": Coded(off=off), "b": Coded()}
    found = _found(_localizer(chains), chains, ("a", "b"))
    assert (found.status, found.layer, found.blamed) == ("inconsistent", "", blamed)


def test_codes_that_are_rounded_down_are_named_though_each_may_be_a_step_off() -> None:
    chains = {"a": Coded(), "b": Coded(cut=True), "c": Coded(off=1e-9)}
    found = _found(_localizer(chains), chains, ("a", "b"))
    assert (found.status, found.layer, found.blamed) == ("inconsistent", "layer0", "b")
    assert found.reason.endswith("; layer0 rounds 8 bits otherwise")
    assert found.cleared == ("layer1", "layer2")
    assert _found(_localizer(chains), chains, ("a", "c")).layer == ""


def test_amplified_rounding_accuses_nobody_and_a_wrong_layer_is_still_named() -> None:
    inputs = {"x": (_X - _X.min()) / (_X.max() - _X.min())}
    for wrong, expected in (((), ("agree", "")), (("layer5",), ("inconsistent", "layer5"))):
        chains = {"a": Logistic(40), "b": Logistic(40, wrong, factored=False)}
        processes: Any = chains
        localizer = Localizer(processes, inputs, Data(inputs), {})
        outputs = {name: each.run(inputs) for name, each in chains.items()}
        assert not np.allclose(outputs["a"]["layer39"], outputs["b"]["layer39"], atol=0.1)
        pair = PairResult(("a", "b"), "inconsistent", "far", metrics={}, worst=2)
        found = localizer.inconsistent(pair, outputs)
        assert (found.status, found.layer, found.blamed) == (*expected, "")
        assert wrong or "far; rounding: no layer differs on equal inputs" in found.reason


def test_a_small_deviation_triggers_where_a_layer_differs_alone() -> None:
    near = {"share": 0.5, "instances": "0-5"}
    verdict = OutputVerdict("agree", "small", 2, {"share": 0.0, "triggering": "", "near": near})
    for wrong, expected in (
        ((), ("agree", "", 0.0)),
        (("layer1",), ("inconsistent", "layer1", 0.5)),
    ):
        chains = {"a": Chain(), "b": Chain(wrong=wrong), "c": Chain()}
        outputs = {name: each.output() for name, each in chains.items()}
        found = _localizer(chains).examined(("a", "b"), verdict, outputs)
        assert (found.status, found.layer, found.metrics["share"]) == expected
        # Layer 2 deviates as well, and is no suspect: it was not run, so nobody says it is right.
        assert not found.cleared
        assert found.blamed == ("b" if wrong else "") and chains["b"].calls.count("hidden") == 1


def test_a_layer_alone_reads_equal_values_though_who_held_them_is_forgotten() -> None:
    """What layer 3 reads in a is b's in the first pair, and then c's."""
    chains = {
        "a": Chain(4, fused=("layer2",)),
        "b": Chain(4, wrong=("layer1", "layer2")),
        "c": Chain(4, wrong=("layer0",), fails=("layer0",)),
    }
    localizer = _localizer(chains)
    _found(localizer, chains, ("a", "b"))
    localizer.forget("b")
    assert _found(localizer, chains, ("a", "c")).layer == ""


def test_a_constant_is_named_where_no_layer_is_and_not_for_the_end_of_32_bits() -> None:
    largest, wrong = 2**63 - 1, ("layer1",)
    for end, layers, expected in (
        (2**31 - 1, wrong, "layer1"), (2**31 - 1, (), ""), (7, wrong, "layer1"), (7, (), "end"),
    ):  # fmt: skip
        chains = {"a": Chain(end=largest), "b": Chain(end=end, wrong=layers)}
        assert _found(_localizer(chains), chains, ("a", "b")).layer == expected


def test_outputs_that_nothing_reads_do_not_count() -> None:
    nodes = [Node("best", "TopK", (("x", 0),)), Node("sum", "Sum", (("best", 0),))]
    assert read_places(nodes, ["sum"])["best"] == {0}
    assert read_places(nodes, ["sum", "best:1"])["best"] == {0, 1}
    # Which node an output of an ONNX model comes from is not said.
    assert read_places(nodes, ["sum", "places"]) == {}


def test_a_backend_that_dies_with_its_hidden_states_says_so_and_the_next_pair_goes_on() -> None:
    chains = {"a": Chain(), "b": Chain(fails=("hidden",)), "c": Chain(wrong=("layer0",))}
    localizer = _localizer(chains)
    found = _found(localizer, chains, ("a", "b"))
    assert found.layer == "" and "no hidden states: the process was killed" in found.reason
    assert _found(localizer, chains, ("a", "c")).layer == "layer0"


def test_a_layer_that_cannot_run_alone_is_left_out_and_asked_once() -> None:
    chains = {"a": Chain(), "b": Chain(wrong=("layer0", "layer2"), fails=("layer0",))}
    localizer = _localizer(chains)
    for _ in range(2):
        found = _found(localizer, chains, ("a", "b"))
        assert (found.layer, found.cleared) == ("layer2", ("layer1",))
    assert chains["b"].calls.count("replay layer0") == 1


def test_a_model_that_fails_to_compile_though_no_layer_fails_alone_is_narrowed_down() -> None:
    failure = Failure("error", "no such operator", "line 1")
    late = tuple(f"prefix layer{at}" for at in range(7, 20))
    chains = {"a": Chain(20), "b": Chain(20, wrong=("layer3",), fails=late), "c": Chain(20)}
    localizer = _localizer(chains, {"b": failure})
    found = localizer.failed(("a", "b"))
    assert (found.status, found.layer, found.blamed) == ("error", "layer7", "b")
    calls = len(chains["b"].calls)
    assert localizer.failed(("c", "b")).layer == "layer7"
    # What one pair shows holds for the others.
    assert len(chains["b"].calls) == calls


def test_a_layer_that_fails_alone_at_another_line_is_named_only_where_nothing_is_known_better() -> (
    None
):
    failure = Failure("error", "no such operator", "line 1")
    late = tuple(f"prefix layer{at}" for at in range(7, 20))
    for fails, named in ((late, "layer7"), ((), "layer2")):
        chains = {"a": Chain(20), "b": Chain(20, fails=fails, fails_elsewhere=("layer2",))}
        found = _localizer(chains, {"b": failure}).failed(("a", "b"))
        assert (found.layer, found.between, found.blamed) == (named, None, "b")


def test_where_a_model_cannot_end_before_the_layer_the_last_that_compiles_is_named_beside() -> None:
    failure = Failure("error", "no such operator", "line 1")
    late = tuple(f"prefix layer{at}" for at in range(7, 20))
    chains = {"a": Chain(20), "b": Chain(20, fails=late, no_ends=("layer5", "layer6"))}
    found = _localizer(chains, {"b": failure}).failed(("a", "b"))
    assert (found.layer, found.between, found.blamed) == ("", ("layer4", "layer7"), "b")


def test_a_crash_is_laid_at_the_layer_that_crashes_alone_though_at_another_line() -> None:
    failure = Failure("crash", "the process was killed by SIGSEGV", "a line of the whole model")
    chains = {"a": Chain(), "b": Chain(wrong=("layer0",), fails=("layer1",))}
    found = _localizer(chains, {"b": failure}).failed(("a", "b"))
    assert (found.status, found.layer, found.blamed) == ("crash", "layer1", "b")
