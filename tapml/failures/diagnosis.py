"""What localization found about one failing test, as data.

Made on the host by :func:`tapml.diagnosis.diagnose.diagnose`, stored in repro folders and bundles.
It needs neither TVM nor torch, and nothing read back is trusted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tapml.durable.strict_json import to_strict
from tapml_targets.errors import InputError

MAX_TEXT: Final = 64 << 10
_Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
_Texts: TypeAlias = Annotated[tuple[_Text, ...], Meta(max_length=256)]
_Index: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)], ...], Meta(max_length=256)
]
_Position: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]

Cause: TypeAlias = Literal[
    "schedule", "fusion", "math", "driver", "code generator", "kernel text", "unknown"
]
HowFound: TypeAlias = Literal["refined kernel", "prefix kernel", "hypothesis", "only step"]

CARVED_DATA: Final = "carved data"
"""The hazard of a NaN that lies in the carved inputs, or that float64 gives as well."""

_NUMBERS: Final = frozenset({"ratio", "limit", "value", "parameter_value", "argument"})


@dataclass(frozen=True)
class InnerStep:
    """A step of an operator's body.

    Attributes
    ----------
    name
        The body's operator, e.g. ``multiply``.
    position, count
        Which step of how many, from 1.
    operation
        What it computes, from its TVMScript; several statements are lines.
    origins
        Operations of the model that it may be: ``aten.mul.Tensor at model.py:12 (layers.0.mlp)``.
    found
        How it was found: its own kernel fails (``refined kernel``); the kernel of the steps up to
        it fails and the one up to the step before does not (``prefix kernel``); the target's output
        is what a standard mistake in it gives (``hypothesis``); there is no other (``only step``).
    ratio, limit
        Its worst error / (sensitivity + ulp) and the policy's limit for it. For a hypothesis the
        distance of the target's output from what the mistake gives.
    mistake
        The mistake in plain words; empty where none matches.
    sentence
        All this for a person.
    """

    name: _Text
    position: _Position
    count: _Position
    operation: _Text
    origins: _Texts
    found: HowFound
    ratio: float
    limit: float
    mistake: _Text
    sentence: _Text


@dataclass(frozen=True)
class NonFiniteOrigin:
    """Where the first NaN or Inf of an output comes from.

    Attributes
    ----------
    output, index, value
        The output parameter, the element, and the NaN or Inf there.
    parameter, parameter_index, parameter_value
        The input element that made it; the parameter is empty where none could be singled out.
    step
        Name of the inner step where it arises; empty where unknown.
    hazard
        Short name, e.g. ``tanh overflow``, ``0/0``; ``carved data`` where the reference has it too;
        empty where none is known that fits.
    argument
        The value that crossed the hazard's bound; NaN where there is none.
    sentence
        All this for a person.
    """

    output: _Text
    index: _Index
    value: float
    parameter: _Text
    parameter_index: _Index
    parameter_value: float
    step: _Text
    hazard: _Text
    argument: float
    sentence: _Text

    @property
    def is_carved(self) -> bool:
        """Whether the carved data itself is to blame, and so not the target."""
        return self.hazard == CARVED_DATA


@dataclass(frozen=True)
class Attribution:
    """What a wrong kernel is the fault of.

    Attributes
    ----------
    cause
        One word, ``unknown`` where the evidence does not tell.
    evidence
        Pairs (variant, what it gave): the same body compiled in another way, run elsewhere.
    sentence
        All this for a person.
    """

    cause: Cause
    evidence: Annotated[tuple[tuple[_Text, _Text], ...], Meta(max_length=256)]
    sentence: _Text


@dataclass(frozen=True)
class Statement:
    """One thing that localization found, in words.

    Attributes
    ----------
    kind
        ``step``, ``NaN``, ``Inf``, ``cause``, ``where`` or ``note``.
    text
        A sentence.
    evidence
        What it rests on, a line each.
    """

    kind: str
    text: str
    evidence: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The statement, and its evidence indented."""
        return [f"{self.kind}: {self.text}", *(f"  {line}" for line in self.evidence)]


@dataclass(frozen=True)
class Diagnosis:
    """What is known about one failing test beyond its verdict.

    Attributes
    ----------
    operator
        The operator.
    step
        The inner step the fault lies in; None where it is unknown.
    where
        Where in each output the wrong elements lie, a sentence each, the simplest first.
    nonfinite
        Where the first NaN or Inf comes from; None where all are in place.
    attribution
        What the fault is due to; None where that was not tried.
    notes
        What was excluded by evidence, and what could not be done and why.
    """

    operator: _Text
    step: InnerStep | None = None
    where: _Texts = ()
    nonfinite: NonFiniteOrigin | None = None
    attribution: Attribution | None = None
    notes: _Texts = ()

    def statements(self) -> list[Statement]:
        """The diagnosis for a person, most telling first."""
        found = []
        if self.step is not None:
            origins = tuple(f"from {origin}" for origin in self.step.origins)
            found.append(Statement("step", self.step.sentence, origins))
        if self.nonfinite is not None:
            kind = "NaN" if math.isnan(self.nonfinite.value) else "Inf"
            found.append(Statement(kind, self.nonfinite.sentence))
        if self.attribution is not None:
            evidence = tuple(f"{variant}: {gave}" for variant, gave in self.attribution.evidence)
            text = f"{self.attribution.cause}: {self.attribution.sentence}"
            found.append(Statement("cause", text, evidence))
        found += [Statement("where", sentence) for sentence in self.where]
        return found + [Statement("note", note) for note in self.notes]

    def lines(self) -> list[str]:
        """The statements as lines; evidence is indented."""
        return [line for each in self.statements() for line in each.lines()]

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON; NaN and Inf travel as text."""
        plain: dict[str, Any] = to_strict(asdict(self))
        return plain

    @staticmethod
    def from_json(data: object) -> Diagnosis:
        """The diagnosis that `data` holds.

        Raises
        ------
        InputError
            If `data` is no diagnosis, or larger than any that tapml writes.
        """
        try:
            return msgspec.convert(_with_numbers(data), Diagnosis)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"a diagnosis should be as tapml writes it: {str(error)[:200]}"
            ) from None


def _with_numbers(data: object) -> object:
    """`data` with NaN and Inf, which travel as text, as the numbers they are."""
    if not isinstance(data, dict):
        return data
    return {
        name: float(value)
        if name in _NUMBERS and value in ("nan", "inf", "-inf")
        else _with_numbers(value)
        for name, value in data.items()
    }
