"""Relations of other packages, which are found by entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from tapml.invariants import relation
from tapml.invariants.checking import Checker
from tapml.invariants.inference import Run, infer
from tapml.invariants.record import Window
from tapml.invariants.recording import recorded
from tapml.invariants.relation import Example, Memory, Params, Relation, relation_named
from tapml_targets.errors import InputError, SetupError


class _Small(Relation):
    """No parameter has more than 20 elements: a rule that tapml does not have."""

    name = "SmallParameters"

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        return [{"most": "20"}]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        for state in window.states:
            count = torch.Size(state.fields["shape"]).numel()  # type: ignore[arg-type]
            found = f"{state.name} has {count} elements"
            yield Example(count <= int(params["most"]), (state,), state.name, found)

    def sentence(self, params: Params) -> str:
        return f"Parameters have at most {params['most']} elements."

    def concerns(self, params: Params) -> frozenset[str]:
        return frozenset({"Parameter.data"})


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The module of an installed package's entry point."""
    information = tmp_path / "others-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    points = f"[{relation.ENTRY_POINTS}]\nsmall = others_relation\n"
    (information / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ModuleType("others_relation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    relation.relations.cache_clear()
    yield module
    relation.relations.cache_clear()


def _trained(width: int) -> Run:
    with recorded() as recording:
        model = nn.Linear(width, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, width)).sum().backward()
            optimizer.step()
    return recording.run()


def test_a_relation_of_another_package_is_learned_and_checked(entry: ModuleType) -> None:
    vars(entry)["RELATION"] = _Small()
    learned = infer([_trained(4)])
    (rule,) = [each for each in learned.invariants if each.relation == "SmallParameters"]
    checker = Checker(learned)
    for window in _trained(30).windows:
        checker.check(window)

    assert rule.text == "Parameters have at most 20 elements."
    assert checker.findings[rule.id].first.found == "weight has 60 elements"


def test_an_entry_point_without_a_relation_and_a_package_that_is_gone_are_named(
    entry: ModuleType,
) -> None:
    with pytest.raises(SetupError, match="others_relation has no relation: expected RELATION"):
        relation.relations()
    relation.relations.cache_clear()
    vars(entry)["RELATION"] = _Small()
    with pytest.raises(InputError, match=r"no relation 'Other'; known are .*SmallParameters"):
        relation_named("Other")
