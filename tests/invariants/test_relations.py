"""Relations on small runs, beyond what the paper's errors show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tapml.invariants import set_meta, watch
from tapml.invariants.checking import Checker
from tapml.invariants.inference import Run, infer
from tapml.invariants.invariant import FORMAT, Invariant, InvariantSet, merged
from tapml.invariants.precondition import ALWAYS
from tapml.invariants.record import (
    BACKWARD,
    BATCH,
    CALL,
    CLIPS,
    FORWARD,
    ZERO_GRAD,
    Record,
    Row,
    Window,
    windows_of,
)
from tapml.invariants.recording import recorded
from tapml.invariants.relations.evaluated import RELATION as EVALUATED
from tapml_targets.errors import SetupError


class Tied(nn.Module):
    """An embedding whose weight is also the head's, unless it is cloned."""

    def __init__(self, *, cloned: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)
        weight = self.embedding.weight
        self.head.weight = nn.Parameter(weight.detach().clone()) if cloned else weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.head(self.embedding(tokens))
        return logits


def run(train: Callable[[], None]) -> Run:
    """A recorded run."""
    with recorded() as recording:
        train()
    return recording.run()


def tied(seed: int, *, cloned: bool = False) -> Run:
    """Train the tied model."""

    def train() -> None:
        torch.manual_seed(seed)
        model = Tied(cloned=cloned)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(4):
            tokens = torch.randint(0, 12, (8,))
            optimizer.zero_grad()
            loss: Any = functional.cross_entropy(model(tokens), tokens)
            loss.backward()
            optimizer.step()

    return run(train)


def test_tied_weights_that_part_are_found() -> None:
    learned = infer([tied(1), tied(2)])
    (rule,) = [each for each in learned.invariants if each.relation == "Consistent"]
    assert rule.text == "embedding.weight and head.weight have equal values after each step."
    for cloned in (False, True):
        checker = Checker(learned)
        for window in tied(3, cloned=cloned).windows:
            checker.check(window)
        assert (rule.id in checker.findings) == cloned


def test_a_loss_that_is_not_finite_is_found() -> None:
    def train(scale: float) -> Callable[[], None]:
        def loop() -> None:
            torch.manual_seed(0)
            model, criterion = nn.Linear(4, 1), nn.MSELoss()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for step in range(4):
                optimizer.zero_grad()
                x = torch.randn(8, 4) * (scale if step == 2 else 1)
                criterion(model(x), torch.zeros(8, 1)).backward()
                optimizer.step()

        return loop

    learned = infer([run(train(1.0))])
    checker = Checker(learned)
    for window in run(train(1e30)).windows:
        checker.check(window)
    (finding,) = [
        each
        for each in checker.findings.values()
        if each.invariant.text == "The result of MSELoss.forward is finite."
    ]
    assert finding.first.step == 2


def test_optimizers_that_take_turns_share_a_step() -> None:
    def train() -> None:
        one, other = nn.Linear(4, 4), nn.Linear(4, 4)
        steps = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (one, other)]
        for _ in range(3):
            for optimizer in steps:
                optimizer.zero_grad()
            other(one(torch.ones(2, 4))).square().sum().backward()
            for optimizer in steps:
                optimizer.step()
        # The first step of another phase looks like one more turn.
        later = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(3):
            later.zero_grad()
            one(torch.ones(2, 4)).square().sum().backward()
            later.step()

    made = run(train)
    assert [window.step for window in made.windows if window.states] == [0, 1, 2, 3, 4]


def violated(learned: InvariantSet, seen: Run) -> set[str]:
    """The sentences of what a run violates."""
    checker = Checker(learned)
    for window in seen.windows:
        checker.check(window)
    return {each.invariant.text for each in checker.findings.values()}


def accumulated(*, adds: int = 1, every: int = 1, clears: bool = True) -> Callable[[], None]:
    """A loop with `adds` backward calls a step and a schedule that moves every so many steps."""

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for step in range(6):
            if clears:
                optimizer.zero_grad()
            for _ in range(adds):
                model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            if step % every == every - 1:
                schedule.step()

    return loop


def test_gradients_that_add_up_on_purpose_and_schedules_of_epochs_violate_nothing() -> None:
    learned = infer([run(accumulated())])
    assert violated(learned, run(accumulated(adds=2, every=3))) == set()
    assert violated(learned, run(accumulated(adds=2, clears=False))) == {
        "Before the first torch.autograd.backward after an optimizer step, Optimizer.zero_grad "
        "has been called."
    }


def cleared(*, between: bool) -> Callable[[], None]:
    """Two backward calls a step, and gradients that are cleared before both, or before the step."""

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(4):
            for part in range(2):
                if between or not part:
                    optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    return loop


class Value(nn.Module):
    """Values of two actions; its features may be fixed, though their parameters could train."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.fixed = False

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Two numbers a row."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.fixed):
            hidden = torch.tanh(self.features(states))
        values: torch.Tensor = self.head(hidden)
        return values


def value_learning(seed: int, kind: str = "right") -> Run:
    """Learn values with a target network that follows, and gets no gradient."""

    def train() -> None:
        torch.manual_seed(seed)
        value, target = Value(), Value()
        held = value if kind == "right" else value.head
        if kind == "left over":
            value(torch.randn(2, 4)).sum().backward()
            value.fixed = True
        optimizer = torch.optim.Adam(held.parameters(), lr=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = 1 + 0.9 * target(torch.randn(8, 4))
            loss: Any = functional.mse_loss(value(torch.randn(8, 4)), wanted)
            loss.backward()
            with torch.no_grad():
                if kind == "by hand":
                    for each in value.features.parameters():
                        assert each.grad is not None
                        each.sub_(each.grad, alpha=0.1)
                        each.grad = None
                for mine, its in zip(target.parameters(), value.parameters(), strict=True):
                    mine.lerp_(its, 0.1)
            optimizer.step()

    return run(train)


def test_a_parameter_whose_gradients_nothing_uses_is_found() -> None:
    learned = infer([value_learning(1), value_learning(2)])
    (rule,) = [
        each
        for each in learned.invariants
        if each.relation == "OptimizerParameters" and each.params["mode"] == "used"
    ]
    assert rule.text == "Each parameter that gets gradients is in an optimizer."
    # Updated by hand; or the gradient is of a phase that is over.
    for kind, steps in (("right", []), ("by hand", []), ("left over", []), ("part", [1])):
        checker = Checker(InvariantSet(learned.format, learned.runs, [rule]))
        for window in value_learning(3, kind).windows:
            checker.check(window)
        assert [each.first.step for each in checker.findings.values()] == steps, kind


def test_gradients_that_are_cleared_before_a_step_uses_them_are_found() -> None:
    learned = infer([run(cleared(between=False))])
    assert violated(learned, run(cleared(between=False))) == set()
    assert violated(learned, run(cleared(between=True))) == {
        "An optimizer step uses the gradients of a backward call before they are cleared."
    }


def flat(*steps: int) -> Callable[[], None]:
    """A loop whose loss has no slope in some steps."""

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            torch.autograd.backward(loss * float(step not in steps))
            optimizer.step()

    return loop


def test_a_loss_may_have_no_slope_once_and_not_in_two_steps_in_a_row() -> None:
    learned = infer([run(flat())])
    assert violated(learned, run(flat(2, 4))) == set()
    text = "Inside torch.autograd.backward, the grad of at least one Parameter becomes nonzero."
    assert text in violated(learned, run(flat(2, 3)))
    for steps, expected in (((2, 4), []), ((2, 3), [3])):
        with watch(invariants=learned, on_violation="report") as watched:
            flat(*steps)()
        found = [each for each in watched.checker.findings.values() if each.invariant.text == text]
        assert [each.first.step for each in found] == expected


class Listed(nn.Module):
    """Layers that it knows, or, by an error, keeps in a plain list."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        layers = [nn.Linear(4, 4) for _ in range(2)]
        self.layers = layers if plain else nn.ModuleList(layers)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number a row."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        found: torch.Tensor = self.head(x)
        return found


def test_layers_that_the_model_does_not_know_are_found() -> None:
    def train(*, plain: bool = False) -> None:
        model = Listed(plain=plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    learned = infer([run(train)])
    assert violated(learned, run(train)) == set()
    checker = Checker(learned)
    for window in run(lambda: train(plain=True)).windows:
        checker.check(window)
    found = {each.invariant.relation: each for each in checker.findings.values()}
    assert set(found["OptimizerParameters"].subjects) == {
        f"{layer}.{name}" for layer in ("Linear", "Linear-2") for name in ("weight", "bias")
    }


def test_batches_are_those_of_evaluation_whatever_mode_a_layer_in_a_plain_list_has() -> None:
    def train() -> None:
        model = Listed(plain=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4, 4)))
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        model.eval()
        for _ in loader:
            pass

    batches = [each for window in run(train).windows for each in window.calls(BATCH)]
    assert [each.context.get("stage") for each in batches[1:5]] == ["train"] * 4
    assert {each.context.get("stage") for each in batches[5:]} == {"eval"}


def test_training_that_goes_on_in_evaluation_mode_is_found() -> None:
    def train(*, forgets: bool = False) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 1))
        teacher = nn.Linear(4, 1).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(5):
            optimizer.zero_grad()
            x = torch.randn(8, 4)
            (model(x) - teacher(x).detach()).square().mean().backward()
            optimizer.step()
            if step == 2:
                model.eval()
                with torch.no_grad():
                    model(x)
                model.train(not forgets)

    learned = infer([run(train)])
    assert violated(learned, run(train)) == set()
    checker = Checker(learned)
    for window in run(lambda: train(forgets=True)).windows:
        checker.check(window)
    (found,) = [
        each for each in checker.findings.values() if each.invariant.relation == "TrainingMode"
    ]
    assert (found.first.step, found.first.found) == (3, "Sequential ran in evaluation mode")


def clipped(
    *, clips: str = "before", schedules: int = 1, other: bool = False, evaluates: bool = True
) -> Callable[[], None]:
    """A loop that clips gradients, an evaluation, and every so many steps a move of a schedule."""

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1) if other else Holder(nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1) if schedules else None
        for step in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            if clips == "before":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if clips == "after":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if schedule is not None and step % schedules == schedules - 1:
                schedule.step()
        model.train(not evaluates)
        with torch.no_grad():
            model(torch.randn(8, 4))

    return loop


def test_calls_that_a_program_leaves_out_altogether_are_found() -> None:
    learned = infer([run(clipped())])
    assert violated(learned, run(clipped())) == set()
    without = violated(learned, run(clipped(clips="never")))
    assert len(without) == 1
    assert "clip_grad_norm_" in without.pop()
    rarely = violated(learned, run(clipped(schedules=3)))
    assert rarely
    (late,) = violated(learned, run(clipped(clips="after")))
    assert late == (
        "Before each Optimizer.step, torch.nn.utils.clip_grad_norm_ has been called since the last "
        "backward call."
    )
    assert violated(learned, run(clipped(evaluates=False))) == {
        "Holder is evaluated in evaluation mode."
    }
    assert all("LRScheduler.step" in each for each in rarely)
    assert violated(learned, run(clipped(schedules=99))) == rarely
    # The program may be set up without a schedule.
    assert violated(learned, run(clipped(schedules=0))) == set()
    # Another program may do without.
    assert violated(learned, run(clipped(clips="never", schedules=3, other=True))) == set()
    # What came after the end of a trace, or on a rank that is not there, nobody knows.
    with recorded() as recording:
        clipped(evaluates=False)()
    *rows, end = recording.rows
    failed = end._replace(fields={"failure": "KeyboardInterrupt"})
    of_two = end._replace(context={**end.context, "world": 2})
    for seen in (rows, [*rows, failed], [*rows, of_two]):
        assert violated(learned, Run("", tuple(windows_of([seen])))) == set()


def scaled(*, unscales: str = "before") -> Callable[[], None]:
    """A loop with a scaler of gradients, which unscales them in its step if nothing else did."""

    def loop() -> None:
        torch.manual_seed(0)
        model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
            if unscales == "before":
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if unscales == "after":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    return loop


@pytest.mark.parametrize("unscales", ["after", "never"])
def test_scaled_gradients_that_are_clipped_are_found(unscales: str) -> None:
    learned = infer([run(scaled())])
    assert violated(learned, run(scaled())) == set()
    assert (
        "Before each torch.nn.utils.clip_grad_norm_, GradScaler.unscale_ has been called since the "
        "last backward call."
    ) in violated(learned, run(scaled(unscales=unscales)))


def test_a_loader_that_begins_again_at_each_step_is_found() -> None:
    def train(*, again: bool = False) -> Callable[[], None]:
        def loop() -> None:
            torch.manual_seed(0)
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            # Of two single samples in any order, every other epoch begins as the last one ended.
            samples = torch.utils.data.TensorDataset(torch.randn(2, 4))
            loader = torch.utils.data.DataLoader(samples, batch_size=1, shuffle=not again)
            for _ in range(8):
                for (x,) in loader:
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                    if again:
                        break

        return loop

    learned = infer([run(train())])
    assert violated(learned, run(train())) == set()
    assert "Neighbouring batches differ, whichever worker made them." in violated(
        learned, run(train(again=True))
    )


class Holder(nn.Module):
    """Calls the part that it was given, or forgets it."""

    def __init__(self, part: nn.Module, *, forgets: bool = False) -> None:
        super().__init__()
        self.part, self.head, self.forgets = part, nn.Linear(4, 1), forgets

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number a row."""
        found: torch.Tensor = self.head(x if self.forgets else self.part(x))
        return found


def test_a_module_calls_the_parts_that_it_was_given() -> None:
    def train(part: nn.Module, *, forgets: bool = False) -> Callable[[], None]:
        def loop() -> None:
            model = Holder(part, forgets=forgets)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()

        return loop

    learned = infer([run(train(nn.LayerNorm(4)))])
    assert violated(learned, run(train(nn.Tanh()))) == set()
    found = violated(learned, run(train(nn.LayerNorm(4), forgets=True)))
    assert "Holder.forward calls LayerNorm.forward." in found


class Gate(nn.Module):
    """One factor for each feature, or, by an error, one for each row."""

    def forward(self, x: torch.Tensor, *, reduces: bool) -> torch.Tensor:
        """As `x`."""
        return torch.sigmoid(x).mean(1, keepdim=True) if reduces else torch.sigmoid(x)


class Pad(nn.Module):
    """Rows of at least a length."""

    def forward(self, x: torch.Tensor, min_length: int, *, lacks: int) -> torch.Tensor:
        """As `x`, with zeros behind."""
        return functional.pad(x, (0, min_length - lacks - x.shape[1]))


class Lookup(nn.Module):
    """Rows of a table."""

    def forward(self, tokens: torch.Tensor, *, doubles: bool) -> torch.Tensor:
        """Rows of four numbers."""
        rows = torch.ones(12, 4)[tokens]
        return rows.double() if doubles else rows


def processed(error: str = "") -> Run:
    """A model whose parts give what they should, or one does not from the third step on."""

    def train() -> None:
        lookup, pad, gate = Lookup(), Pad(), Gate()
        model = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 1)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(4):
            now = error if step >= 2 else ""
            optimizer.zero_grad()
            x = lookup(torch.arange(6), doubles=now == "doubles").float()
            x = pad(x[:, :3], min_length=6, lacks=2 if now == "lacks" else 0)[:, :4]
            for layer in model:
                x = layer(x * gate(x, reduces=now == "reduces"))
            x.square().mean().backward()
            optimizer.step()

    return run(train)


def test_results_of_another_shape_dtype_or_length_are_found() -> None:
    learned = infer([processed()])
    assert violated(learned, processed()) == set()
    for error, said in {
        "reduces": "The result of Gate.forward has the shape of its first argument.",
        "doubles": "For arguments of one dtype, the result of Lookup.forward always has the same "
        "dtype.",
        "lacks": "The last extent of the result of Pad.forward is at least its min argument.",
    }.items():
        assert said in violated(learned, processed(error))
    shaped = [each.text for each in learned.invariants if each.params.get("mode") == "shape"]
    assert not any("Linear" in text for text in shaped)


def turns(*, steps: int, planned: int) -> Run:
    """Two optimizers in turn, and a plan."""

    def train() -> None:
        set_meta(planned_steps=planned)
        models = [nn.Linear(2, 2) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for _ in range(steps):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                torch.autograd.backward(model(torch.ones(1, 2)).sum())
                optimizer.step()

    return run(train)


def test_optimizers_that_take_turns_make_the_planned_steps_together() -> None:
    learned = infer([turns(steps=4, planned=4)])
    rule = "The run makes as many optimizer steps as it planned."
    assert rule in {each.text for each in learned.invariants}
    assert rule not in violated(learned, turns(steps=4, planned=4))
    assert rule in violated(learned, turns(steps=3, planned=4))


def test_a_faster_path_in_evaluation_violates_nothing() -> None:
    def train(*, evaluates: bool) -> None:
        model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=8, batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(model(torch.randn(2, 3, 8)).square().sum())
            optimizer.step()
        if evaluates:
            model.eval()
            with torch.no_grad():
                model(torch.randn(2, 3, 8))

    learned = infer([run(lambda: train(evaluates=False))])
    assert any("MultiheadAttention" in each.text for each in learned.invariants)
    assert not violated(learned, run(lambda: train(evaluates=True)))


def test_a_direct_backward_call_is_one_call() -> None:
    model = nn.Linear(4, 1)
    made = run(lambda: torch.autograd.backward(model(torch.ones(2, 4)).sum()))
    assert sum(len(window.calls(BACKWARD)) for window in made.windows) == 1


def test_compiled_code_is_refused_by_name() -> None:
    with recorded(), pytest.raises(SetupError, match=r"torch\.compile.*--eager"):
        torch.compile(nn.Linear(2, 2))


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_model_that_was_compiled_before_is_refused_by_name() -> None:
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    with recorded(), pytest.raises(SetupError, match=r"Linear was compiled by torch\.compile"):
        compiled(torch.ones(1, 2))
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile(backend="eager")
    with pytest.raises(SetupError, match=r"Sequential was compiled"):
        watch(model, invariants="pytorch").__enter__()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.autograd.backward(model[0](torch.ones(1, 2)).sum())
    with recorded(), pytest.raises(SetupError, match=r"Linear was compiled"):
        optimizer.step()


def test_an_evaluation_gives_the_same_bits_with_and_without_recording() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(4, 6, 16)
    with torch.no_grad():
        plain = model(x)
        with recorded():
            assert torch.equal(model(x), plain)


def test_ranks_that_part_in_the_last_row_by_a_tiny_number_are_found() -> None:
    def rows(*, parts: bool) -> list[Row]:
        with recorded() as recording:
            model = nn.Linear(4, 8, bias=False)
            nn.init.zeros_(model.weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                optimizer.zero_grad()
                torch.autograd.backward(model(torch.zeros(2, 4)).sum())
                with torch.no_grad():
                    model.weight[-1, -1] = 1e-9 if parts and step >= 2 else 0
                optimizer.step()
        return recording.rows

    def job(*, parts: bool) -> Run:
        other = [row._replace(rank=1) for row in rows(parts=parts)]
        return Run("", tuple(windows_of([rows(parts=False), other])))

    learned = infer([job(parts=False)])
    checker = Checker(learned)
    for window in job(parts=True).windows:
        checker.check(window)
    found = [each for each in checker.findings.values() if each.invariant.relation == "Consistent"]
    assert [each.first.step for each in found] == [2]


def test_a_wrapper_of_pytorch_is_no_model_of_the_programs_own() -> None:
    records = [
        Record(CALL, name, 0, -1, 0, 0, "", "", {}, {"class": kind, "module.training": False})
        for kind, name in (
            ("Net", FORWARD), ("DataParallel", FORWARD),
            ("", "torch.nn.parallel.data_parallel.DataParallel.forward"),
        )
    ]  # fmt: skip
    window = Window(0, (tuple(records),))
    assert list(EVALUATED.hypotheses([window])) == [{"class": "Net"}]


@pytest.mark.parametrize("stale", [False, True])
def test_a_trained_norm_without_statistics_is_found_in_evaluation(stale: bool) -> None:
    def train(stale: bool = False) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        average = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            names = dict(model.named_parameters()) if stale else model.state_dict()
            average.load_state_dict(names, strict=False)
            with torch.no_grad():
                average(torch.randn(6, 4))

    learned = infer([run(train), run(train)])
    with watch(invariants=learned, on_violation="report") as watched:
        train(stale)
    found = {each.head.invariant.relation for each in watched.report().causes}
    assert found == ({"StatisticsTracked", "WeightsLoaded"} if stale else set())


@pytest.mark.parametrize("given", [False, True])
def test_a_place_of_values_that_the_script_keeps_is_looked_at_in_each_step(given: bool) -> None:
    def train(hurt: int = -1) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = torch.randn(1, 4) if given else model.weight.data
        if given:
            model.weight.data = kept
        for step in range(8):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            if step == hurt:
                kept.mul_(0.5)

    learned = infer([run(train)])
    with watch(invariants=learned, on_violation="report") as watched:
        train(hurt=5)
    assert [each.first_step for each in watched.report().causes] == [6]


def test_merged_sets_take_the_widest_bound() -> None:
    def set_of(first: str, runs: int) -> InvariantSet:
        params = {"feature": "load", "by": first}
        rule = Invariant("UsedInEveryRun", params, ALWAYS, runs, runs)
        return InvariantSet(FORMAT, ["run"] * runs, [rule])

    found = merged([set_of("5", 1), set_of("3", 2), set_of("4", 1)])
    assert [(each.params["by"], each.runs, each.examples) for each in found.invariants] == [
        ("5", 4, 4)
    ]
    assert len(found.runs) == 4


def test_preconditions_say_when_a_rule_applies() -> None:
    def train() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for phase in ["warm-up"] * 4 + ["main"] * 4:
            set_meta(phase=phase)
            optimizer.zero_grad()
            (model(torch.randn(6, 4)).square().mean() * (phase == "main")).backward()
            optimizer.step()

    (found,) = [
        each.text
        for each in infer([run(train)]).invariants
        if each.params.get("child") == "Parameter.grad becomes nonzero"
    ]
    assert found.endswith("at least one Parameter becomes nonzero, if phase is 'main'.")


def test_the_first_step_of_a_closure_keeps_what_loops_show() -> None:
    def train(*, closure: bool = False) -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        kind = torch.optim.LBFGS if closure else torch.optim.SGD
        optimizer: Any = kind(model.parameters(), lr=0.1)
        rows = torch.randn(4, 6, 4)
        step = 0

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            found: torch.Tensor = model(rows[step]).square().mean()
            found.backward()  # type: ignore[no-untyped-call]
            return found

        for step in range(4):  # noqa: B007 - the closure reads it
            if closure:
                optimizer.step(loss)
            else:
                loss()
                optimizer.step()

    learned = infer([run(train)])
    with watch(invariants=learned, on_violation="report") as watched:
        train(closure=True)
    found = [each for cause in watched.report().causes for each in cause.findings]
    assert [(each.invariant.text, each.first.found) for each in found] == []


def test_gradients_need_not_be_there_before_the_first_backward_call() -> None:
    def train(*, first: bool = False) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            if first:
                optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad()

    learned = infer([run(train)])
    with watch(invariants=learned, on_violation="report") as watched:
        train(first=True)
    assert watched.report().violated == 0


@pytest.mark.parametrize("used", [False, True])
def test_a_model_that_runs_without_gradients_alone_needs_no_optimizer(used: bool) -> None:
    def train(teacher: nn.Module | None = None) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            rows = torch.randn(6, 4)
            with torch.set_grad_enabled(used):
                wanted = teacher(rows) if teacher is not None else 1.0
            optimizer.zero_grad()
            (model(rows) - wanted).square().mean().backward()
            optimizer.step()

    learned = infer([run(train)])
    with watch(invariants=learned, on_violation="report") as watched:
        train(nn.Linear(4, 1))
    found = {
        each.invariant.params["mode"]
        for cause in watched.report().causes
        for each in cause.findings
        if each.invariant.relation == "OptimizerParameters"
    }
    assert found == ({"trainable", "used"} if used else set())


@pytest.mark.parametrize("clears", [True, False])
def test_a_model_that_is_evaluated_beside_one_that_trains_hides_no_step(clears: bool) -> None:
    sequence = {"first": ZERO_GRAD, "second": BACKWARD, "mode": "lead"}
    rule = Invariant("APISequence", sequence, ALWAYS)
    model, average = nn.Linear(4, 1), nn.Linear(4, 1).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(invariants=InvariantSet(FORMAT, [], [rule]), on_violation="report") as watched:
        for _ in range(4):
            if clears:
                optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                average(torch.randn(6, 4))
    assert watched.report().violated == (not clears)


@pytest.mark.parametrize("another", [False, True])
def test_a_frozen_part_and_one_that_a_step_left_out_are_clipped_without_gradients(
    another: bool,
) -> None:
    rule = Invariant("GradientsClipped", {"api": CLIPS[0]}, ALWAYS)

    class Heads(nn.ModuleList):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self[0](rows)
            return found

    heads = Heads(nn.Linear(4, 1) for _ in range(3))
    heads[2].requires_grad_(False)
    optimizer = torch.optim.SGD(heads.parameters(), lr=0.1)
    clipped: list[nn.Module] = [nn.Linear(4, 1)] if another else list(heads)
    with watch(invariants=InvariantSet(FORMAT, [], [rule]), on_violation="report") as watched:
        for _ in range(3):
            optimizer.zero_grad()
            heads(torch.randn(6, 4)).square().mean().backward()
            for part in clipped:
                nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            optimizer.step()
    assert watched.report().violated == another


def test_gradients_may_be_cleared_to_zeros_and_a_model_may_be_made_for_each_fold() -> None:
    def train(to_none: bool) -> None:
        for _ in range(2):
            model = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(4):
                optimizer.zero_grad(set_to_none=to_none)
                model(torch.randn(6, 4)).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                model.eval()(torch.randn(6, 4))

    learned = infer([run(lambda: train(to_none=True))])
    assert "Before the first" in " ".join(each.text for each in learned.invariants)
    for to_none in (True, False):
        with watch(invariants=learned, on_violation="report") as watched:
            train(to_none)
        assert watched.report().violated == 0
    checker = Checker(learned)
    for window in run(lambda: train(to_none=False)).windows:
        assert not checker.check(window)
