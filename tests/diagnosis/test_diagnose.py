"""A diagnosis holds all there is to know, and its own trouble is a note."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from tapml.compiler.compiler import Compiler
from tapml.diagnosis import diagnose as module
from tapml.diagnosis.diagnose import diagnose
from tapml.failures.diagnosis import Diagnosis
from tapml.plan.graph_plan import Operator
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import DeviceLostError
from tapml_targets.library import Library
from tests.diagnosis.failing import Failing, edited, fail, in_one, normal, operator_of, plan_of


@pytest.fixture(scope="module")
def session(pocl: DeviceDescription) -> Iterator[Session]:
    with open_local(pocl) as opened:
        yield opened


@pytest.fixture(scope="module")
def failing(session: Session, compiler: Compiler) -> Failing:
    """silu(a) * b whose last 36 columns take exp2 for exp."""
    arrays = [normal(4, 100), normal(4, 100, seed=1)]
    operator = operator_of(lambda a, b: torch.nn.functional.silu(a) * b, *arrays)
    tail = r"exp\((\(0\.0+e\+00f - input_0_ptr\[(.+?)\]\))\)"
    change = in_one(operator, tail, r"((\2) % 100 >= 64 ? exp2(\1) : exp(\1))")
    return fail(operator, arrays, change, session, compiler)


def test_step_place_and_cause_come_together(failing: Failing) -> None:
    found = diagnose(failing.failure, failing.session, compile=failing.compile, budget_seconds=120)
    assert found.operator == "fused_silu_multiply"
    assert found.step is not None
    assert found.step.name == "sigmoid"
    assert "computes exp2 in place of exp" in found.step.mistake
    assert "in the elements that are wrong" in found.step.sentence
    assert "the last 36 of 100 along axis 1" in found.where[0]
    assert "beyond the last full multiple of 64" in found.where[0]
    assert found.nonfinite is None
    assert found.attribution is not None
    assert Diagnosis.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
    assert found.lines()[0].startswith("step: ")


@pytest.mark.parametrize("part", ["describe_places", "find_step", "find_origin", "attribute"])
def test_a_part_that_fails_is_a_note_and_the_others_remain(
    part: str, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("an accident\nof two lines")

    monkeypatch.setattr(module, part, broken)
    found = diagnose(failing.failure, failing.session, compile=failing.compile)
    stopped = [note for note in found.notes if "stopped: ZeroDivisionError: an accident" in note]
    assert len(stopped) == 1
    assert bool(found.where) == (part != "describe_places")
    assert (found.step is not None) == (part != "find_step")
    assert (found.attribution is not None) == (part != "attribute")


def test_a_lost_device_is_not_hidden(failing: Failing) -> None:
    def lost(operator: Operator, options: Mapping[str, str]) -> Library:
        raise DeviceLostError("the device is gone")

    with pytest.raises(DeviceLostError):
        diagnose(failing.failure, failing.session, compile=lost)


def test_an_operator_that_has_no_steps_is_still_placed_and_attributed(
    session: Session, compiler: Compiler
) -> None:
    values = normal(3, 40)
    (operator,) = plan_of(lambda a: torch.cumsum(a, 1), values).operators.values()

    def change(each: Operator, library: Library) -> Library:
        return edited(library, r"(scanned_ptr\[.+\] = )", r"\g<1>2.0f * ")

    failing = fail(operator, [values], change, session, compiler)
    found = diagnose(failing.failure, session, compile=failing.compile)
    assert found.step is None
    assert found.where
    assert any("cannot be taken apart into steps" in note for note in found.notes)
