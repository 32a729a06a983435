"""The reference's runs over all cases, with which a target's are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tapml.execute.arrays import Array
from tapml.plan.graph_plan import GraphPlan
from tapml.plan.plan_notes import BRANCHES
from tapml.verdicts.modelwise import AllowedLogitError
from tapml_targets.errors import InputError


class Case(Protocol):
    """What a model is run on once: a prompt, a batch of sentences, an input."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Its tokens; empty if it has none."""

    @property
    def text(self) -> str | None:
        """What people read."""


class Runner(Protocol):
    """An executor, or a finished plan on its device."""

    def reset(self) -> None:
        """Set the state to zero."""

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry; what is compared is its first output."""


@dataclass(frozen=True)
class CaseTrace:
    """The reference's run of one case.

    Attributes
    ----------
    case
        The case.
    choices
        What the model chose and was given back: the tokens of a decoder; else empty.
    outputs
        What is compared, one row each: the logits of every position, vectors, or the logits of
        classes.
    allowed
        The largest error that passes.
    """

    case: Any
    choices: tuple[int, ...]
    outputs: Array
    allowed: AllowedLogitError


@dataclass(frozen=True)
class ReferenceTrace:
    """The reference's run over all cases."""

    cases: tuple[CaseTrace, ...]

    def check_branches(self, plan: GraphPlan) -> None:
        """Raise :class:`InputError` if a case takes other branches than the plan has: it is NaN.

        A target's NaN beside it would pass, and say nothing.
        """
        lines = plan.metadata.get(BRANCHES)
        for number, each in enumerate(self.cases if lines else (), 1):
            if np.isnan(each.outputs).any():
                text = str(each.case.text or "")[:60]
                raise InputError(
                    f"case {number}{f' ({text})' if text else ''} takes another branch at {lines} "
                    "than the example inputs, so its outputs are NaN: give cases that take the "
                    "same (--input, --prompt or --tokens)"
                )

    @cached_property
    def key(self) -> str:
        """Hexadecimal SHA-256 of cases, choices, outputs and allowed errors."""
        digest = hashlib.sha256()
        for each in self.cases:
            digest.update(repr((each.case, each.choices, each.allowed)).encode())
            digest.update(np.ascontiguousarray(each.outputs).view(np.uint8).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class CaseResult:
    """What the target gave for one case on its own, compared with the reference.

    `prompt` and `text` are for people, `tokens` are what it chose.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    verdict: str
    equal: bool
