"""Runs as the parent keeps them: records by rank, tensors once by hash. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Key: TypeAlias = tuple[str, int, str]
"""Phase, step and name of a tensor."""


@dataclass(frozen=True)
class Record:
    """What one rank holds of a tensor.

    Attributes
    ----------
    key, order
        The tensor, and when the rank recorded it within its phase.
    digest
        Hash of the local values; empty if there is no tensor, such as a gradient that is None.
    placement
        ``whole``, ``shard`` (the block of the whole that begins at `offset`), ``blocks`` (several
        such, flat and one after the other), or ``rows`` (the samples `rows`, of which the rank has
        the block that begins at `offset` of `shape`, if there is a shape).
    summed
        The ranks whose values add up to this tensor, of partial sums; empty for others.
    blocks
        Where each block begins, and its shape.
    inputs
        For hidden states, the modules whose outputs this one takes; for predictions the model's
        input, if they are made from the inputs of the last step.
    weight
        For updates, the largest magnitude of the weights; for gradients that follow from updates,
        that over the learning rate.
    """

    key: Key
    order: int
    digest: str
    placement: str
    shape: tuple[int, ...] = ()
    offset: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    weight: float = 0.0
    blocks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    inputs: tuple[str, ...] = ()
    summed: tuple[int, ...] = ()


@dataclass
class Tensors:
    """Arrays by hash: equal replicas, and runs that agree, are kept once."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    _largest: dict[str, float] = field(default_factory=dict)

    def add(self, digest: str, array: NDArray[Any] | None) -> None:
        """Keep an array, unless it is known."""
        if array is not None:
            self.arrays.setdefault(digest, array)

    def get(self, digest: str) -> NDArray[np.float64] | None:
        """The values as float64; None if no rank has sent them."""
        found = self.arrays.get(digest)
        return None if found is None else np.asarray(found, np.float64)

    def largest(self, digest: str) -> float:
        """The largest finite magnitude; 0 for no tensor, or one that no rank has sent."""
        found = self.arrays.get(digest)
        if found is None:
            return 0.0
        if digest not in self._largest:
            exact = found if found.dtype.kind == "f" else np.asarray(found, np.float64)
            finite = np.isfinite(exact)
            self._largest[digest] = float(np.max(np.abs(exact), where=finite, initial=0.0))
        return self._largest[digest]


@dataclass(frozen=True)
class Run:
    """All ranks of one run.

    Attributes
    ----------
    ranks
        Records by rank and key.
    seconds
        Time of the slowest rank's steps.
    random
        Whether a step drew random numbers.
    dtypes
        Floating-point formats that operations gave, with their unit roundoff and the first such
        operation; empty if the run did not observe them.
    not_compared
        Names with reasons.
    """

    ranks: tuple[Mapping[Key, Record], ...]
    seconds: float
    random: bool
    dtypes: Mapping[str, tuple[float, str]]
    not_compared: Mapping[str, str]

    @property
    def keys(self) -> list[Key]:
        """All tensors of the run, as rank 0 recorded them, then what other ranks have besides."""
        return list(dict.fromkeys(key for records in self.ranks for key in records))


def read_run(answers: Iterable[Mapping[str, Any]], tensors: Tensors) -> Run:
    """The run that ranks have answered; its tensors go to `tensors`."""
    ranks: list[dict[Key, Record]] = []
    seconds, random = 0.0, False
    dtypes: dict[str, tuple[float, str]] = {}
    reasons: dict[str, str] = {}
    for answer in answers:
        records: dict[Key, Record] = {}
        for each in answer["records"]:
            tensors.add(each["digest"], each["value"])
            key = each["phase"], each["step"], each["name"]
            records[key] = Record(
                key=key,
                order=each["order"],
                digest=each["digest"],
                placement=each["placement"],
                shape=tuple(each.get("shape", ())),
                offset=tuple(each.get("offset", ())),
                rows=tuple(each.get("rows", ())),
                weight=each.get("weight", 0.0),
                inputs=tuple(each.get("inputs", ())),
                summed=tuple(each.get("summed", ())),
                blocks=tuple(
                    (tuple(start), tuple(shape)) for start, shape in each.get("blocks", ())
                ),
            )
        ranks.append(records)
        seconds = max(seconds, answer["seconds"])
        random = random or answer["random"]
        dtypes |= {name: (each[0], each[1]) for name, each in answer["dtypes"].items()}
        reasons |= answer["not_compared"]
    return Run(tuple(ranks), seconds, random, dtypes, reasons)
