"""What localization found about one failing test, as data.

Made on the host by :func:`tapml.localize.diagnose.diagnose`, stored in repro folders and bundles.
It needs neither TVM nor torch, and nothing read back is trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from tapml.localize.plain_fields import PlainFields, plain_number

Cause: TypeAlias = Literal[
    "schedule", "fusion", "math", "driver", "code generator", "kernel text", "unknown"
]
HowFound: TypeAlias = Literal["refined kernel", "prefix kernel", "hypothesis", "only step"]

CARVED_DATA: Final = "carved data"
"""The hazard of a NaN that lies in the carved inputs, or that float64 gives as well."""

_CAUSES: Final[tuple[str, ...]] = get_args(Cause)
_WAYS: Final[tuple[str, ...]] = get_args(HowFound)


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

    name: str
    position: int
    count: int
    operation: str
    origins: tuple[str, ...]
    found: HowFound
    ratio: float
    limit: float
    mistake: str
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON."""
        return {
            "name": self.name,
            "position": self.position,
            "count": self.count,
            "operation": self.operation,
            "origins": list(self.origins),
            "found": self.found,
            "ratio": plain_number(self.ratio),
            "limit": plain_number(self.limit),
            "mistake": self.mistake,
            "sentence": self.sentence,
        }

    @staticmethod
    def from_json(data: object) -> InnerStep:
        """The step that `data` holds; raises InputError where it holds none."""
        fields = PlainFields(data, "an inner step")
        return InnerStep(
            name=fields.text("name"),
            position=fields.integer("position", 1),
            count=fields.integer("count", 1),
            operation=fields.text("operation"),
            origins=fields.texts("origins"),
            found=cast(HowFound, fields.choice("found", _WAYS)),
            ratio=fields.number("ratio"),
            limit=fields.number("limit"),
            mistake=fields.text("mistake"),
            sentence=fields.text("sentence"),
        )


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

    output: str
    index: tuple[int, ...]
    value: float
    parameter: str
    parameter_index: tuple[int, ...]
    parameter_value: float
    step: str
    hazard: str
    argument: float
    sentence: str

    @property
    def is_carved(self) -> bool:
        """Whether the carved data itself is to blame, and so not the target."""
        return self.hazard == CARVED_DATA

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON."""
        return {
            "output": self.output,
            "index": list(self.index),
            "value": plain_number(self.value),
            "parameter": self.parameter,
            "parameter_index": list(self.parameter_index),
            "parameter_value": plain_number(self.parameter_value),
            "step": self.step,
            "hazard": self.hazard,
            "argument": plain_number(self.argument),
            "sentence": self.sentence,
        }

    @staticmethod
    def from_json(data: object) -> NonFiniteOrigin:
        """The origin that `data` holds; raises InputError where it holds none."""
        fields = PlainFields(data, "the origin of a NaN")
        return NonFiniteOrigin(
            output=fields.text("output"),
            index=fields.integers("index"),
            value=fields.number("value"),
            parameter=fields.text("parameter"),
            parameter_index=fields.integers("parameter_index"),
            parameter_value=fields.number("parameter_value"),
            step=fields.text("step"),
            hazard=fields.text("hazard"),
            argument=fields.number("argument"),
            sentence=fields.text("sentence"),
        )


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
    evidence: tuple[tuple[str, str], ...]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON."""
        return {
            "cause": self.cause,
            "evidence": [list(pair) for pair in self.evidence],
            "sentence": self.sentence,
        }

    @staticmethod
    def from_json(data: object) -> Attribution:
        """The attribution that `data` holds; raises InputError where it holds none."""
        fields = PlainFields(data, "an attribution")
        return Attribution(
            cause=cast(Cause, fields.choice("cause", _CAUSES)),
            evidence=fields.pairs("evidence"),
            sentence=fields.text("sentence"),
        )


@dataclass(frozen=True)
class Diagnosis:
    """What is known about one failing test beyond its verdict.

    Attributes
    ----------
    operator
        The operator.
    step
        The inner step the fault lies in; None where it could not be told.
    where
        Where in each output the wrong elements lie, a sentence each, the simplest first.
    nonfinite
        Where the first NaN or Inf comes from; None where there is none out of place.
    attribution
        What the fault is due to; None where that was not tried.
    notes
        What was excluded by evidence, and what could not be done and why.
    """

    operator: str
    step: InnerStep | None = None
    where: tuple[str, ...] = ()
    nonfinite: NonFiniteOrigin | None = None
    attribution: Attribution | None = None
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The diagnosis for a person, most telling first."""
        lines = []
        if self.step is not None:
            lines.append(f"step: {self.step.sentence}")
            lines += [f"  from {origin}" for origin in self.step.origins]
        if self.nonfinite is not None:
            value = self.nonfinite.value
            lines.append(f"{'NaN' if math.isnan(value) else 'Inf'}: {self.nonfinite.sentence}")
        if self.attribution is not None:
            lines.append(f"cause: {self.attribution.cause}: {self.attribution.sentence}")
            lines += [f"  {variant}: {gave}" for variant, gave in self.attribution.evidence]
        lines += [f"where: {sentence}" for sentence in self.where]
        lines += [f"note: {note}" for note in self.notes]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain data for strict JSON."""
        return {
            "operator": self.operator,
            "step": None if self.step is None else self.step.to_json(),
            "where": list(self.where),
            "nonfinite": None if self.nonfinite is None else self.nonfinite.to_json(),
            "attribution": None if self.attribution is None else self.attribution.to_json(),
            "notes": list(self.notes),
        }

    @staticmethod
    def from_json(data: object) -> Diagnosis:
        """The diagnosis that `data` holds.

        Raises
        ------
        InputError
            If `data` is no diagnosis, or larger than any that tapml writes.
        """
        fields = PlainFields(data, "a diagnosis")
        return Diagnosis(
            operator=fields.text("operator"),
            step=InnerStep.from_json(fields.value("step")) if fields.has("step") else None,
            where=fields.texts("where"),
            nonfinite=(
                NonFiniteOrigin.from_json(fields.value("nonfinite"))
                if fields.has("nonfinite")
                else None
            ),
            attribution=(
                Attribution.from_json(fields.value("attribution"))
                if fields.has("attribution")
                else None
            ),
            notes=fields.texts("notes"),
        )
