"""The mistake behind an inconsistency, from its first wrong tensor in dataflow order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from tapml.distributed.judging import Judgement
from tapml.distributed.mistakes import Mistake, Observed, Slices, find_mistake
from tapml.distributed.results import BATCH_NORM, DROPOUT, Deviation
from tapml.distributed.run_records import Key, Run, Tensors

TOLERANCE: Final = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}


class Samples(Protocol):
    """What an explanation asks of a plan, or of a recording; see Plan."""

    @property
    def weights(self) -> Mapping[str, Any]:
        """Packed weights and buffers at the start, by name."""

    @property
    def frozen(self) -> frozenset[str]:
        """Parameters that need no gradient."""

    def samples_of(self, world: int, step: int) -> list[int]:
        """Samples of each rank."""

    def covers(self, world: int, step: int) -> bool | None:
        """Whether the ranks have every sample once."""


# Of float64: updates are differences of weights, so that weights' rounding is in them.
_AGAIN: Final = 1e-9
APART: Final = {
    BATCH_NORM: Mistake(
        "BatchNorm computes statistics of each rank's own samples",
        "use SyncBatchNorm (on GPUs), GroupNorm or LayerNorm, or freeze the statistics with eval()",
    ),
    DROPOUT: Mistake(
        "dropout draws other masks on the ranks than on one device",
        "no bug in itself: set dropout to 0 in the job to compare the rest",
    ),
}


def explain(
    judgement: Judgement,
    reference: Run,
    run: Run,
    tensors: Tensors,
    plan: Samples,
    precision: str,
    slices_of: Callable[[int, Mapping[str, Any]], Sequence[Mapping[str, Any]]],
) -> Mistake | None:
    """The mistake that reproduces what was seen; None if no standard one does.

    `slices_of` computes slice gradients for a step, from the weights before it.
    """
    first = judgement.deviations[0]
    world = len(run.ranks)
    frozen = [each for each in judgement.deviations if each.tensor in plan.frozen]
    moved = [each for each in frozen if each.phase in ("gradient", "update")]
    if first.phase == "start":
        return _adrift(first, reference, run)
    if moved and first in moved:
        if _moves(first, reference, tensors):
            return Mistake(
                f"{first.tensor}, which needs no gradient, is changed by the step itself, and not "
                f"alike on {_ranks(first.ranks, world)}",
                "change it in the same way on all ranks (a moving average, a copy)",
            )
        return Mistake(
            f"{first.tensor} is frozen on one device and trained on the ranks",
            "keep requires_grad as model() sets it, and give the optimizer the trained ones only",
        )
    wrong = [
        each
        for each in judgement.deviations
        if each.phase == "gradient" and each.step == first.step
    ]
    if first.phase == "forward":
        found = _unsummed(first, reference, run, tensors, precision)
        if found is not None:
            return found
    if wrong:
        found = _gradient(wrong, reference, run, tensors, plan, precision, slices_of)
        return found or _unsummed(wrong[0], reference, run, tensors, precision)
    if first.phase in ("update", "state"):
        found = _update(first, judgement, run, tensors, world)
        if found is None and first.phase == "update":
            found = _gradient_again(judgement, reference, run, tensors, precision)
        return found
    return _of_own_samples(first, reference, run, tensors, precision)


def _moves(deviation: Deviation, reference: Run, tensors: Tensors) -> bool:
    """Whether a frozen parameter moves on one device as well."""
    record = reference.ranks[0].get(("update", deviation.step, deviation.tensor))
    value = None if record is None else tensors.get(record.digest)
    return value is not None and bool(value.any())


def _ranks(ranks: Sequence[int], world: int) -> str:
    if len(ranks) == world:
        return "all ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _adrift(first: Deviation, reference: Run, run: Run) -> Mistake:
    key = first.phase, first.step, first.tensor
    if key not in reference.ranks[0]:
        return Mistake(
            f"{first.tensor} is a tensor of its own on the ranks alone: a tied weight that was "
            "untied, or one that was added",
            "tie weights again after the model is wrapped, and add none there",
        )
    held = [records[key] for records in run.ranks if key in records]
    if len(first.ranks) < len(run.ranks):
        return Mistake(
            f"the replica of {_ranks(first.ranks, len(run.ranks))} is adrift before the first step",
            "broadcast weights and buffers from rank 0 at the start (init_sync)",
        )
    if len({each.digest for each in held if each.placement == "whole"}) > 1:
        return Mistake(
            "each replica starts with weights of its own",
            "broadcast weights and buffers from rank 0 at the start (init_sync)",
        )
    return Mistake(
        "distributing the model changes its weights",
        "distribute after the weights are loaded, and do not initialize them again",
    )


def _gradient(
    wrong: Sequence[Deviation],
    reference: Run,
    run: Run,
    tensors: Tensors,
    plan: Samples,
    precision: str,
    slices_of: Callable[[int, Mapping[str, Any]], Sequence[Mapping[str, Any]]],
) -> Mistake | None:
    step = wrong[0].step
    world = len(run.ranks)
    found = [_observed(each, reference, run, tensors) for each in wrong]
    gradients = slices_of(step, _weights_before(step, reference, tensors, plan))
    slices = Slices(
        [
            {name: np.asarray(value, np.float64) for name, value in each.items()}
            for each in gradients
        ],
        plan.samples_of(world, step),
        TOLERANCE[precision],
        plan.covers(world, step),
    )
    mistake = find_mistake(found, slices)
    all_compared = [key for key in reference.ranks[0] if key[0] == "gradient" and key[1] == step]
    trained = [key for key in all_compared if reference.ranks[0][key].digest]
    if mistake is None or len(wrong) == len(trained) or world == 1:
        return mistake
    names = ", ".join(each.tensor for each in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
    return Mistake(f"{mistake.text}; only for {names}", mistake.remedy)


def _unsummed(
    deviation: Deviation, reference: Run, run: Run, tensors: Tensors, precision: str
) -> Mistake | None:
    """Ranks with the same samples have parts of a sum, and nothing sums them."""
    key: Key = deviation.phase, deviation.step, deviation.tensor
    record = reference.ranks[0].get(key)
    held = [records[key] for records in run.ranks if key in records]
    if record is None or len(held) < max(2, len(run.ranks)):
        return None
    alike = all(each.rows == record.rows and not each.shape and not each.blocks for each in held)
    expected = tensors.get(record.digest)
    parts = [each for each in map(tensors.get, (own.digest for own in held)) if each is not None]
    if expected is None or not alike or len(parts) < len(held):
        return None
    if any(each.shape != expected.shape for each in parts):
        return None
    error = np.abs(np.sum(parts, axis=0) - expected).max(initial=0.0)
    if not error <= TOLERANCE[precision] * np.abs(expected).max(initial=0.0):
        return None
    return Mistake(
        f"the {deviation.words} is a part of a sum on each rank, and nothing sums the parts",
        "all-reduce it over the ranks: in the forward pass after a layer that is cut by inputs, in "
        "the backward pass before one that is cut by outputs",
    )


def _of_own_samples(
    first: Deviation, reference: Run, run: Run, tensors: Tensors, precision: str
) -> Mistake | None:
    """A buffer that each rank makes of its own samples: one device's is the mean, or the sum."""
    key: Key = first.phase, first.step, first.tensor
    earlier = ("buffer", first.step - 1, first.tensor), ("start", 0, first.tensor)
    known = reference.ranks[0]
    before = next((tensors.get(known[each].digest) for each in earlier if each in known), None)
    expected = tensors.get(known[key].digest) if key in known else None
    held = [records[key] for records in run.ranks if key in records]
    parts = [tensors.get(each.digest) for each in held if each.placement == "whole"]
    if first.phase != "buffer" or expected is None or before is None or len(parts) < 2:
        return None
    values = [each for each in parts if each is not None and each.shape == expected.shape]
    if len(values) < len(run.ranks) or all(np.array_equal(each, values[0]) for each in values):
        return None
    if len(first.ranks) < len(run.ranks):
        return Mistake(
            f"{first.tensor} is one device's on some ranks, and not on "
            + _ranks(first.ranks, len(run.ranks)),
            "update it on all ranks alike, or broadcast it",
        )
    changes, wanted = [each - before for each in values], expected - before
    allowed = TOLERANCE[precision] * np.abs(wanted).max(initial=0.0)
    for found, verb in ((np.mean(changes, axis=0), "averages"), (np.sum(changes, axis=0), "sums")):
        if np.abs(found - wanted).max(initial=0.0) <= allowed:
            return Mistake(
                f"{first.tensor} is made of each rank's own samples, and nothing {verb} it",
                "all-reduce what it is made of before it is stored"
                + (", and divide by the number of ranks" if verb == "averages" else ""),
            )
    return None


def _observed(deviation: Deviation, reference: Run, run: Run, tensors: Tensors) -> Observed:
    key: Key = deviation.phase, deviation.step, deviation.tensor
    record = reference.ranks[0].get(key)
    expected = tensors.get(record.digest) if record is not None and record.digest else None
    held = {}
    for rank, records in enumerate(run.ranks):
        own = records.get(key)
        value = None
        if own is not None:
            value = tensors.get(own.digest) if own.digest else expected
            if value is not None and not own.digest:
                value = np.zeros_like(value)
        if own is not None and value is not None and own.placement != "blocks":
            held[rank] = value, own.offset if own.placement == "shard" else ()
    before = reference.ranks[0].get((key[0], key[1] - 1, key[2]))
    earlier = tensors.get(before.digest) if before is not None and before.digest else None
    return Observed(deviation.tensor, expected, held, earlier)


def _weights_before(step: int, reference: Run, tensors: Tensors, plan: Samples) -> dict[str, Any]:
    """One device's weights and buffers before a step, packed."""
    if step == 1:
        return dict(plan.weights)
    found = {}
    records = reference.ranks[0]
    for name, packed in plan.weights.items():
        start = records.get(("start", 0, name))
        value = None if start is None else tensors.get(start.digest)
        last = records.get(("buffer", step - 1, name))
        if last is not None:
            value = tensors.get(last.digest)
        elif value is not None:
            value = value.copy()
            for number in range(1, step):
                update = records.get(("update", number, name))
                moved = None if update is None else tensors.get(update.digest)
                value = value if moved is None else value + moved
        is_real = packed["tensor"].dtype.kind == "f" or packed["dtype"] == "bfloat16"
        usable = value is not None and is_real
        found[name] = {"tensor": value, "dtype": "float64"} if usable else packed
    return found


def _update(
    first: Deviation, judgement: Judgement, run: Run, tensors: Tensors, world: int
) -> Mistake | None:
    """The gradients are right and the optimizer's step is not."""
    key = first.phase, first.step, first.tensor
    held = [records[key] for records in run.ranks if key in records]
    values = [tensors.get(each.digest) for each in held if each.digest]
    name = first.tensor.split(" ")[0]
    still = all(each is not None and not each.any() for each in values)
    if (first.phase == "state" and not held) or (first.phase == "update" and still):
        return Mistake(
            f"{name} is not updated on the ranks though its gradient is right",
            "give it to the optimizer, which must be made after the model is distributed",
        )
    if len(first.ranks) < world:
        return Mistake(
            f"the optimizer of {_ranks(first.ranks, world)} takes another step",
            "give all ranks the same optimizer, hyperparameters and schedule",
        )
    ratios = [
        each.ratio
        for each in judgement.deviations
        # Later steps start from other weights.
        if (each.phase, each.step) == ("update", first.step) and each.ratio is not None
    ]
    if first.phase == "update" and world > 1 and ratios:
        if all(abs(ratio / world - 1) < 1e-6 for ratio in ratios):
            return Mistake(
                "the learning rate is multiplied by the number of ranks",
                "leave it as on one device: the batch of all ranks is the same",
            )
        if max(ratios) - min(ratios) < 1e-6 * max(ratios):
            return Mistake(
                f"updates are {ratios[0]:.4g} times those of one device",
                "use one device's learning rate and schedule",
            )
    return None


def _gradient_again(
    judgement: Judgement, reference: Run, run: Run, tensors: Tensors, precision: str
) -> Mistake | None:
    """Weights move by one multiple of their gradients beside what one device's move by."""
    step = judgement.deviations[0].step
    factors = []
    for each in judgement.deviations:
        if (each.phase, each.step) != ("update", step):
            continue
        wanted = reference.ranks[0].get(("update", step, each.tensor))
        given = reference.ranks[0].get(("gradient", step, each.tensor))
        if wanted is None or given is None:
            return None
        expected, gradient = tensors.get(wanted.digest), tensors.get(given.digest)
        for rank in each.ranks:
            own = run.ranks[rank]["update", step, each.tensor]
            actual = tensors.get(own.digest)
            if expected is None or gradient is None or actual is None or own.placement != "whole":
                return None
            moved, square = actual - expected, float(np.vdot(gradient, gradient))
            factor = float(np.vdot(gradient, moved)) / square if square else 0.0
            if float(np.abs(moved - factor * gradient).max()) > _AGAIN * float(np.abs(moved).max()):
                return None
            factors.append(factor)
    alike = max(factors) - min(factors) <= _AGAIN * max(map(abs, factors), default=0.0)
    if precision != "float64" or not alike:
        return None
    return Mistake(
        f"the weights move by {factors[0]:.4g} times their gradients besides the optimizer's step",
        "step once: call optimizer.step() once a step, and change no weight in a hook of it",
    )
