"""Targets that belong to the model's input, and targets that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tapml.invariants import watch
from tapml.invariants.checking import Checker, Finding
from tapml.invariants.inference import Run, infer
from tapml.invariants.recording import recorded

Pairs = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Classifier(nn.Module):
    """Classes of rows, or of tokens."""

    def __init__(self, *, tokens: bool = False) -> None:
        super().__init__()
        self.enter = nn.Embedding(8, 16) if tokens else nn.Linear(8, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits."""
        found: torch.Tensor = self.head(self.norm(self.enter(rows)).relu())
        return found


def descend(pairs: Pairs, *, tokens: bool = False) -> None:
    """Train on pairs of inputs and targets."""
    model = Classifier(tokens=tokens)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for given, target in pairs:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(given).movedim(-1, 1), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def loaded(*, error: str = "", parts: int = 1) -> None:
    """Batches of a data loader; gradients of parts of them."""

    def pairs() -> Pairs:
        rows, labels = torch.randn(24, 8), torch.arange(24) % 8
        before = labels[:4]
        for x, y in DataLoader(TensorDataset(rows, labels), batch_size=4, shuffle=True):
            wanted = {"rolled": y.roll(1), "of the batch before": before}.get(error, y)
            before = y
            # An input that was changed is as good as the one that was delivered.
            given = x + torch.randn_like(x) if parts == 1 else x
            targets = wanted.chunk(parts)
            if error == "of another part":
                targets = targets[::-1]
            yield from zip(given.chunk(parts), targets, strict=True)

    descend(pairs())


def sliced(*, shift: int = 0, batch: int = 4) -> None:
    """Rows of all inputs and all targets."""
    rows, labels = torch.randn(40, 8), torch.randint(0, 8, (40,))
    descend(
        (rows[at : at + batch], labels[at + shift : at + shift + batch])
        for at in range(0, 32, batch)
    )


def picked(*, shift: int = 0, batch: int = 4, rolled: bool = False) -> None:
    """Rows that an index picks."""
    rows, labels, order = torch.randn(40, 8), torch.arange(40) % 8, torch.randperm(40)

    def pairs() -> Pairs:
        for at in range(0, 32, batch):
            target = labels[order[at + shift : at + shift + batch]]
            yield rows[order[at : at + batch]], target.roll(1) if rolled else target

    descend(pairs())


def stacked(*, shift: int = 1, batch: int = 4, length: int = 5) -> None:
    """Parts of a text from random places, and those a token later."""
    text = torch.randint(0, 8, (80,))

    def pairs() -> Pairs:
        for _ in range(8):
            places = torch.randint(0, 60, (batch,)).tolist()
            starts = (places, [each + shift for each in places])
            given, target = (
                torch.stack([text[at : at + length] for at in each]) for each in starts
            )
            yield given, target

    descend(pairs(), tokens=True)


def spoken(*, shift: int = 1, copied: bool = False, batch: int = 3) -> None:
    """Tokens of texts, and those after them."""

    def pairs() -> Pairs:
        texts = TensorDataset(torch.randint(0, 8, (18, 10)))
        for (text,) in DataLoader(texts, batch_size=batch):
            target = text[:, shift : shift + 9]
            yield text[:, :9], target.clone() if copied else target

    descend(pairs(), tokens=True)


def streamed(*, shift: int = 1, columns: int = 3) -> None:
    """A text in columns, read downwards."""
    text = torch.randint(0, 8, (40, columns))
    descend(
        ((text[at : at + 5], text[at + shift : at + shift + 5]) for at in range(0, 30, 5)),
        tokens=True,
    )


def run_of(train: Callable[[], None], seed: int) -> Run:
    """A recorded run."""
    torch.manual_seed(seed)
    with recorded() as recording:
        train()
    return recording.run()


def found(right: Callable[[], None], other: Callable[[], None]) -> list[list[Finding]]:
    """What another run violates that was not learned from, by its trace and watched."""
    learned = infer([run_of(right, seed) for seed in (1, 2)])
    assert "TargetOrigin" in {each.relation for each in learned.invariants}
    checker = Checker(learned)
    for window in run_of(other, 3).windows:
        checker.check(window)
    torch.manual_seed(3)
    with watch(invariants=learned, on_violation="report") as watched:
        other()
    return [list(each.findings.values()) for each in (checker, watched.checker)]


@pytest.mark.parametrize(
    ("right", "other"),
    [
        (loaded, loaded),
        (partial(loaded, parts=2), partial(loaded, parts=4)),
        (sliced, partial(sliced, batch=8)),
        (picked, partial(picked, batch=8)),
        (stacked, partial(stacked, batch=6, length=9)),
        (spoken, partial(spoken, batch=6)),
        (partial(spoken, copied=True), partial(spoken, copied=True, batch=6)),
        (streamed, partial(streamed, columns=4)),
    ],
    ids=[
        "loader",
        "parts-of-batches",
        "slices",
        "picked",
        "stacked",
        "next-tokens",
        "copied-tokens",
        "columns",
    ],
)
def test_a_right_program_violates_nothing(
    right: Callable[[], None], other: Callable[[], None]
) -> None:
    assert found(right, other) == [[], []]


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (loaded, partial(loaded, error="rolled"), "is no tensor of the last batch"),
        (loaded, partial(loaded, error="of the batch before"), "is no tensor of the last batch"),
        (
            partial(loaded, parts=2),
            partial(loaded, parts=2, error="of another part"),
            "is tensor 2 of the last batch, 2 rows after the input",
        ),
        (sliced, partial(sliced, shift=1), "begins 1 row after the input"),
        (picked, partial(picked, shift=1), "does not lie beside the input"),
        (picked, partial(picked, rolled=True), "does not lie beside the input"),
        (stacked, partial(stacked, shift=0), "has the rows of the input"),
        (spoken, partial(spoken, shift=0), "is tensor 1 of the last batch"),
        (
            partial(spoken, copied=True),
            partial(spoken, copied=True, shift=0),
            "is tensor 1 of the last batch",
        ),
        (streamed, partial(streamed, shift=0), "has the rows of the input"),
    ],
    ids=[
        "rolled",
        "stale",
        "another-part",
        "shifted",
        "picked",
        "picked-and-rolled",
        "stacked",
        "unshifted",
        "copied",
        "same-rows",
    ],
)
def test_targets_of_other_inputs_are_named(
    right: Callable[[], None], wrong: Callable[[], None], said: str
) -> None:
    for findings in found(right, wrong):
        (finding,) = findings
        assert finding.invariant.relation == "TargetOrigin"
        assert said in finding.first.found


def test_targets_that_are_made_have_no_rule() -> None:
    def made() -> None:
        rows = torch.randn(40, 8)
        descend((rows[at : at + 4], torch.zeros(4, dtype=torch.long)) for at in range(0, 24, 4))

    learned = infer([run_of(made, seed) for seed in (1, 2)])
    assert "TargetOrigin" not in {each.relation for each in learned.invariants}
