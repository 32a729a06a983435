"""The verdict about the outputs of a pair of backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tapml.backends.runner import Array
from tapml.comparing import metrics
from tapml.comparing.texts import read_tokens
from tapml.comparing.tokens import are_logits, as_plain, clearest, token_distances
from tapml_targets.errors import InputError

Task: TypeAlias = Literal["classification", "regression", "none"]
TIE: Final = 1e-4
"""A published distance on outputs that are closer than this is a tie that rounding broke."""


@dataclass(frozen=True)
class Thresholds:
    """When an instance triggers, and how many must.

    Attributes
    ----------
    class_distance
        T_C: least D_CLASS, 1 to 16 (paper: 8).
    mad_distance
        T_M: least D_MAD, 0 to 1 (paper: 0.2).
    relative
        Least deviation of an element, relative to the output's scale.
    confirmed
        The same, where a layer is found that differs alone on equal inputs; not beyond `relative`.
    share
        p: the share of instances that may trigger, 0 to 1 (paper: 0).
    top_k
        k of D_CLASS.
    divergence
        Of a language model: least Kullback-Leibler divergence of a position, in nats.
    """

    class_distance: float = 8.0
    mad_distance: float = 0.2
    relative: float = 1e-3
    confirmed: float = TIE
    share: float = 0.0
    top_k: int = metrics.TOP_K
    divergence: float = 1e-3


@dataclass(frozen=True)
class Truth:
    """What outputs are compared with: classes, a regression's targets, or nothing."""

    task: Task
    labels: Array | None = None
    from_backends: bool = False


@dataclass(frozen=True)
class OutputVerdict:
    """The comparison of all instances.

    Attributes
    ----------
    status
        ``agree``, ``inconsistent``, ``nan`` (on one side only) or ``shape``.
    reason
        In a sentence.
    worst
        The most inconsistent instance.
    metrics
        Plain data; names as in the paper. ``counts`` are what other thresholds would find, see
        :mod:`tapml.comparing.calibration`: instances at or above each step, ties left out; for
        D_CLASS by k. ``accuracy`` is that of both backends for k from 1 to 5. ``triggering`` are
        the instances that trigger, as ranges. ``near`` has those that would if a layer differed
        alone. A language model has ``KL``, ``top1`` (the share of
        positions with the same token first) and ``parting``.
    """

    status: str
    reason: str
    worst: int
    metrics: dict[str, Any]


def truth_of(labels: Array | None, outputs: Sequence[Mapping[str, Array]]) -> Truth:
    """What a model's outputs are compared with.

    Labels are about the first output of floats. Without labels, the class that most backends put
    first stands in for them, if that output holds probabilities. Whole numbers are classes, also as
    floats where there are several columns, or the targets of a regression of one column that
    neither they nor the outputs fit as a probability.

    Raises
    ------
    InputError
        If labels do not fit the output.
    """
    about = [_columns(list(each.values())[_about(each)]) for each in outputs]
    first = about[0]
    if labels is None:
        if not _are_probabilities(first):
            return Truth("none")
        votes = [np.argmax(each, axis=1) for each in about]
        counts = sum(metrics.one_hot(each, first.shape[1]) for each in votes)
        return Truth("classification", np.argmax(counts, axis=1), from_backends=True)
    if labels.dtype.kind == "f" and _are_classes(labels, first):
        labels = labels.astype(np.int64)
    if labels.dtype.kind in "biu" and first.ndim == 2:
        if labels.ndim == 2 and labels.shape == first.shape and (labels.sum(axis=1) == 1).all():
            labels = np.argmax(labels, axis=1)
        classes = max(first.shape[1], 2)
        labels = labels.reshape(len(labels), -1)
        if labels.shape[1] != 1:
            raise InputError(f"expected one class per instance, found labels of {labels.shape}")
        outside = labels.min() < 0 or labels.max() >= classes
        if outside and first.shape[1] == 1 and not _are_within_one(first):
            return Truth("regression", labels)
        if outside:
            raise InputError(
                f"the labels go from {labels.min()} to {labels.max()}; the model has {classes} "
                f"classes, so expected 0 to {classes - 1}"
            )
        return Truth("classification", labels[:, 0])
    if labels.size != first.size:
        raise InputError(
            f"the labels of shape {labels.shape} and {labels.dtype} do not fit the output of shape "
            f"{first.shape}; classes are whole numbers, targets have the output's shape"
        )
    return Truth("regression", labels.reshape(first.shape))


def _are_classes(labels: Array, outputs: Array) -> bool:
    """Whether floats are whole numbers, one an instance, or one-hot rows."""
    if outputs.ndim != 2 or outputs.shape[1] < 2 or not (labels == np.trunc(labels)).all():
        return False
    rows = labels.shape == outputs.shape
    one_hot = rows and (np.sort(labels)[:, :-1] == 0).all() and (labels.max(axis=1) == 1).all()
    return bool(one_hot) or labels.size == len(outputs)


def _about(outputs: Mapping[str, Array]) -> int:
    """The place of the output that labels are about: a class may lie before its probabilities."""
    kinds = [each.dtype.kind for each in outputs.values()]
    return kinds.index("f") if "f" in kinds else 0


def _columns(outputs: Array) -> Array:
    """A number for each instance as one column."""
    return outputs[:, None] if outputs.ndim == 1 else outputs


def _classes(*sides: Array) -> list[Array]:
    """Confidences by class; one column is the second of two classes: a probability or a logit."""
    if sides[0].shape[1] > 1:
        return list(sides)
    whole = 1 if all(map(_are_within_one, sides)) else 0
    return [np.concatenate([whole - each, each], axis=1) for each in sides]


def _are_within_one(outputs: Array) -> bool:
    """Whether all that are numbers are; NaN of one instance says nothing about the others."""
    return bool((((outputs >= 0) & (outputs <= 1)) | np.isnan(outputs)).all())


def _are_probabilities(outputs: Array) -> bool:
    if outputs.ndim != 2 or outputs.shape[1] < 2 or outputs.dtype.kind != "f":
        return False
    with np.errstate(invalid="ignore"):
        sums = outputs.sum(axis=1, dtype=np.float64)
    return bool((outputs >= 0).all() and np.allclose(sums, 1.0, atol=1e-2))


def judge(
    first: Mapping[str, Array],
    second: Mapping[str, Array],
    truth: Truth,
    limits: Thresholds,
    tokens: Mapping[str, Array] | None = None,
    instances: int | None = None,
) -> OutputVerdict:
    """Compare the outputs of two backends.

    Parameters
    ----------
    first, second
        By name, in order.
    truth
        What they are compared with.
    limits
        When an instance triggers.
    tokens
        The inputs of a language model.
    instances
        Their number; default: the length of the first output. An output of another length, such as
        a mean over all instances, counts for each of them.
    """
    shapes = [[each.shape for each in side.values()] for side in (first, second)]
    if shapes[0] != shapes[1]:
        return OutputVerdict("shape", f"the outputs have the shapes {shapes[0]} and {shapes[1]}",
                             0, {})  # fmt: skip
    pairs = list(zip(first.values(), second.values(), strict=True))
    count = len(pairs[0][0]) if instances is None else instances
    relative = np.max([_relative(*pair, count) for pair in pairs], axis=0)
    elementwise = relative >= limits.relative
    found: dict[str, Any] = {
        "instances": count,
        "elementwise": _tier(elementwise, limits.relative, float(relative.max()))
        | {"counts": metrics.counts_above(relative, metrics.RELATIVE_STEPS)},
    }
    triggers, order = elementwise, [relative]
    one, other = map(_columns, pairs[_about(first)])
    if np.isinf(relative).any():
        worst = int(np.argmax(relative))
        found["triggering"] = ranges(np.isinf(relative))
        return OutputVerdict("nan", f"{int(np.isinf(relative).sum())} of {count} instances have "
                             "NaN or Inf on one side only", worst, found)  # fmt: skip
    if tokens and are_logits(read_tokens(tokens)[0], one):
        triggers, order = _judge_tokens(one, other, relative, tokens, limits, found)
    elif truth.labels is not None and len(truth.labels) == len(one) == count:
        target = truth.labels
        if truth.task == "classification":
            one, other = _classes(one, other)
            placed = metrics.ranks(one, truth.labels), metrics.ranks(other, truth.labels)
            distance = metrics.rank_distance(*placed, top_k=limits.top_k)
            apart = relative >= TIE
            published = distance >= limits.class_distance
            found["D_CLASS"] = _tier(published, limits.class_distance, float(distance.max())) | {
                "pattern": metrics.class_pattern(distance),
                "k": limits.top_k,
                "ties": int((published & (relative < TIE)).sum()),
                "counts": [
                    metrics.counts_above(
                        metrics.rank_distance(*placed, top_k=k)[apart], metrics.CLASS_STEPS
                    )
                    for k in metrics.TOP_KS
                ],
                "accuracy": [
                    [metrics.accuracy(each, k) for k in metrics.TOP_KS] for each in placed
                ],
            }
            triggers = triggers | (published & (relative >= TIE))
            order.insert(0, np.where(relative >= TIE, distance, 0.0))
            target = metrics.one_hot(truth.labels, one.shape[1])
        mad = metrics.mad_distance(one, other, target)
        published = mad >= limits.mad_distance
        found["D_MAD"] = _tier(published, limits.mad_distance, float(mad.max())) | {
            "pattern": metrics.mad_pattern(mad),
            "counts": metrics.counts_above(np.where(relative >= TIE, mad, 0.0), metrics.MAD_STEPS),
            "ties": int((published & (relative < TIE)).sum()),
        }
        triggers = triggers | (published & (relative >= TIE))
        if truth.task == "regression":
            order.insert(0, np.where(relative >= TIE, mad, 0.0))
    found["share"] = float(triggers.mean())
    found["triggering"] = ranges(triggers)
    worst = int(np.lexsort(order[::-1])[-1])
    if not triggers.any() or triggers.mean() < limits.share:
        near = relative >= limits.confirmed
        if near.any() and near.mean() >= limits.share:
            worst = int(np.argmax(relative))
            found["near"] = _tier(near, limits.confirmed, float(relative.max())) | {
                "share": float(near.mean()), "instances": ranges(near),
            }  # fmt: skip
        reason = reason_of_agreement(float(relative.max()))
        if empty := _instances_with_nan(first, count):
            reason += f"; {empty} of {count} instances have NaN on both sides"
        return OutputVerdict("agree", reason, worst, found)
    reason = (
        f"{int(triggers.sum())} of {count} instances differ, by up to {relative.max():.2g} of the "
        "output's scale"
    )
    if parting := found.get("parting"):
        reason += (
            f"; the first token that differs: {parting['tokens'][0]} and {parting['tokens'][1]} "
            f"after position {parting['position']} of instance {parting['instance']}, with margins "
            f"of {parting['margins'][0]:.2g} and {parting['margins'][1]:.2g}"
        )
    return OutputVerdict("inconsistent", reason, worst, found)


def _judge_tokens(
    one: Array,
    other: Array,
    relative: Array,
    tokens: Mapping[str, Array],
    limits: Thresholds,
    found: dict[str, Any],
) -> tuple[Array, list[Array]]:
    """Which instances of a language model trigger, and what orders them; fills the metrics.

    A divergence or another token first counts, as the published distances do, where the logits
    differ by more than a tie.
    """
    distances = token_distances(one, other, read_tokens(tokens)[1])
    apart = relative >= TIE
    diverging = distances.divergence >= limits.divergence
    parted = np.isin(np.arange(len(relative)), list(distances.partings))
    found["KL"] = _tier(diverging, limits.divergence, float(distances.divergence.max())) | {
        "mean": float(distances.mean.mean()),
        "ties": int((diverging & ~apart).sum()),
    }
    found["top1"] = {
        "agreement": float(distances.agreeing.mean()),
        "parted": int(parted.sum()),
        "ties": int((parted & ~apart).sum()),
    }
    clear = clearest(distances.partings.values())
    if clear is not None:
        found["parting"] = as_plain(clear)
    triggers = (relative >= limits.relative) | ((diverging | parted) & apart)
    return triggers, [np.where(apart, distances.divergence, 0.0), relative]


def _relative(one: Array, other: Array, count: int) -> Array:
    """The deviation of every instance."""
    if one.shape[:1] == (count,):
        return metrics.relative_deviation(one, other)
    whole = metrics.relative_deviation(one.reshape(1, -1), other.reshape(1, -1))
    return np.repeat(whole, count)


def ranges(flags: Array) -> str:
    """The places that are set, in short.

    Examples
    --------
    >>> ranges(np.array([True, True, True, False, True]))
    '0-2, 4'
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return ", ".join(
        str(first) if behind == first + 1 else f"{first}-{behind - 1}"
        for first, behind in edges.reshape(-1, 2).tolist()
    )


def reason_of_agreement(largest: float) -> str:
    """What is said of outputs that agree, if there is no more to say."""
    return f"the largest deviation is {largest:.1e} of the output's scale"


def _instances_with_nan(outputs: Mapping[str, Array], count: int) -> int:
    rows = [
        np.isnan(each.reshape(count if each.shape[:1] == (count,) else 1, -1)).any(axis=1)
        for each in outputs.values()
    ]
    return int(np.logical_or.reduce(np.broadcast_arrays(*rows)).sum())


def _tier(triggers: Array, threshold: float, largest: float) -> dict[str, Any]:
    return {
        "triggering": int(triggers.sum()),
        "threshold": threshold,
        "largest": largest if np.isfinite(largest) else None,
    }
