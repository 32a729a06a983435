"""A run checked in its own process, step by step."""

from __future__ import annotations

import gc
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tapml.invariants import InvariantViolated, InvariantWarning, set_meta, watch
from tapml.invariants.inference import infer, run_of
from tapml.invariants.invariant import InvariantSet, write_set
from tapml.invariants.record import STEP
from tapml.invariants.recording import recorded
from tapml.invariants.trace import read_trace
from tapml_targets.errors import InputError


def train(seed: int, *, forgetful: bool = False, broken_at: int = 99) -> list[float]:
    """Train a small model; returns its losses."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(6):
        if not forgetful or step < broken_at:
            optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def learned() -> InvariantSet:
    runs = []
    for seed in (1, 2):
        with recorded() as recording:
            train(seed)
        runs.append(recording.run())
    return infer(runs)


def test_watching_changes_no_number(learned: InvariantSet) -> None:
    plain = train(3)
    with watch(invariants=learned) as watched:
        assert train(3) == plain
    assert train(3) == plain
    assert watched.report().violated == 0
    assert watched.report().held == len(learned.invariants)


def test_warn_names_the_step_the_line_and_the_rule_once(learned: InvariantSet) -> None:
    with warnings.catch_warnings(record=True) as told, watch(invariants=learned):
        warnings.simplefilter("always")
        train(3, forgetful=True, broken_at=2)
    (warning,) = [each for each in told if each.category is InvariantWarning]
    assert "test_watch.py" in str(warning.message)
    assert "step 2: " in str(warning.message)
    assert "after an optimizer step, Optimizer.zero_grad has been called" in str(warning.message)


def test_stop_ends_the_run_in_the_step_of_the_error(learned: InvariantSet) -> None:
    with (
        pytest.raises(InvariantViolated, match=r"step 4: "),
        watch(invariants=learned, on_violation="stop") as watched,
    ):
        train(3, forgetful=True, broken_at=4)
    assert watched.report().steps == 5


def test_report_keeps_quiet(learned: InvariantSet, tmp_path: Path) -> None:
    write_set(learned, tmp_path / "set")
    with (
        warnings.catch_warnings(action="error"),
        watch(invariants=tmp_path / "set", on_violation="report") as watched,
    ):
        train(3, forgetful=True, broken_at=2)
    (cause,) = watched.report().causes
    assert cause.head.first.step == 2
    assert cause.head.count == 4


def test_pytorch_is_left_as_it_was(learned: InvariantSet) -> None:
    before = (torch.autograd.backward, torch.optim.Optimizer.zero_grad, torch.save)
    with watch(invariants=learned):
        assert torch.autograd.backward is not before[0]
    assert (torch.autograd.backward, torch.optim.Optimizer.zero_grad, torch.save) == before


class Derived(torch.optim.SGD):
    """An optimizer that does more than its base in a step."""

    def step(self, closure: Any = None) -> Any:
        """A step of the base, and weights that shrink."""
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for each in group["params"]:
                    each.mul_(0.99)


def test_an_optimizer_that_calls_the_step_of_its_base_makes_one_step() -> None:
    def train() -> list[float]:
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        # From here on PyTorch calls the hooks in the step of the base as well.
        torch.optim.SGD(model.parameters(), lr=1e-2)
        optimizer = Derived(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            assert torch._C._is_torch_function_all_disabled() is False
        return losses

    with recorded() as recording:
        plain = train()
    made = recording.run()
    assert [len(each.calls(STEP)) for each in made.windows if each.step >= 0] == [1, 1, 1, 1]
    with watch(invariants=infer([made]), on_violation="report") as watched:
        assert train() == plain
    assert watched.report().violated == 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_a_scripted_model_is_watched() -> None:
    def train() -> None:
        model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    with recorded() as recording:
        train()
    with watch(invariants=infer([recording.run()]), on_violation="report") as watched:
        train()
    assert watched.report().violated == 0


def test_a_model_that_another_thread_calls_in_an_optimizer_step_changes_nothing(
    learned: InvariantSet,
) -> None:
    class Evaluates(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            thread = threading.Thread(target=model, args=(torch.ones(1, 4),))
            thread.start()
            thread.join()

    model = nn.Linear(4, 1)
    optimizer = Evaluates(model.parameters(), lr=1e-2)
    with watch(invariants=learned, on_violation="report"):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            # Function modes and tensors of other classes are asked as before.
            assert torch._C._is_torch_function_all_disabled() is False


def test_a_block_is_recorded_to_learn_from(learned: InvariantSet, tmp_path: Path) -> None:
    with watch(trace=tmp_path / "good"):
        train(1)
    found = infer([run_of(read_trace(tmp_path / "good"))])
    assert {each.id for each in learned.invariants} & {each.id for each in found.invariants}
    with pytest.raises(InputError, match="earlier run"):
        watch(trace=tmp_path / "good").__enter__()
    neither: dict[str, Any] = {}
    for given in (neither, {"invariants": learned, "trace": tmp_path / "other"}):
        with pytest.raises(InputError, match="give either"):
            watch(**given).__enter__()


def test_meta_is_recorded_as_context() -> None:
    with recorded() as recording:
        set_meta(phase="warm-up")
        train(1)
        set_meta(phase=None)
    contexts = [record.context for window in recording.run().windows for record in window.records]
    assert contexts
    assert all(each["meta.phase"] == "warm-up" for each in contexts)
    with pytest.raises(InputError, match="set_meta"):
        set_meta(model=nn.Linear(1, 1))  # type: ignore[arg-type]


def test_wrong_arguments_are_named(learned: InvariantSet) -> None:
    loud: Any = "shout"
    with pytest.raises(InputError, match="on_violation"):
        watch(invariants=learned, on_violation=loud).__enter__()
    with pytest.raises(InputError, match="the set is empty"):
        watch(invariants=InvariantSet(learned.format, [], [])).__enter__()
    number: Any = 3
    with pytest.raises(InputError, match="modules and optimizers"):
        watch(number, invariants=learned).__enter__()


def test_an_optimizer_that_raises_leaves_the_watch_and_the_functions_as_they_are(
    learned: InvariantSet,
) -> None:
    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()

    with watch(invariants=learned, on_violation="report") as watched:
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        step()
        step()
        weight = next(model[2].parameters())
        state = optimizer.state.pop(weight)
        # The second parameter of the step fails, when nothing more is listened to.
        optimizer.state[weight] = {**state, "exp_avg": torch.zeros(3, 3)}
        with pytest.raises(RuntimeError, match="size"):
            step()
        optimizer.state[weight] = state
        step()
    assert torch._C._is_torch_function_all_disabled() is False
    report = watched.report()
    assert report.held == len(learned.invariants)
    assert report.violated == 0


def test_an_optimizer_that_raised_and_is_gone_hides_nothing() -> None:
    def train(*, hurt: bool = False, fails: bool = False) -> None:
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-2)
        if fails:
            first: Any = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
            first.state[model.weight] = {"momentum_buffer": torch.zeros(3, 3)}
            model(torch.randn(8, 4)).square().mean().backward()
            with pytest.raises(RuntimeError, match="size"):
                first.step()
            del first
            gc.collect()
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            if hurt and step == 2:
                model.weight.data.mul_(0.5)
            optimizer.step()

    with recorded() as recording:
        train()
    rules = infer([recording.run()])
    for fails in (False, True):
        with watch(invariants=rules, on_violation="report") as watched:
            train(hurt=True, fails=fails)
        found = {each.invariant.relation for each in watched.checker.findings.values()}
        assert "BetweenSteps" in found
