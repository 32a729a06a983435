"""Settings and results of a check, as data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from tapml_targets.errors import EXIT_MISMATCH, EXIT_USAGE

FORMAT: Final = "tapml-distributed/1"

PHASES: Final = ("start", "forward", "gradient", "state", "update", "buffer", "prediction")
"""What is compared, in the order in which a step computes it.

`start` are the weights before the first step, `state` is the optimizer's.
"""

NOUNS: Final = {
    "start": "starting value",
    "forward": "output",
    "gradient": "gradient",
    "state": "optimizer state",
    "update": "update",
    "buffer": "value",
    "prediction": "prediction",
}
"""What a tensor is called in each phase."""

BATCH_NORM: Final = "BatchNorm"
DROPOUT: Final = "dropout"
"""Kinds of layers whose result depends on which samples stand together."""

PUBLISHED_ABSOLUTE: Final = 5e-4
PUBLISHED_RELATIVE: Final = 1e-4
"""Thresholds of the paper on predictions (section IV)."""


def tensor_words(phase: str, tensor: str) -> str:
    """A tensor in words.

    >>> tensor_words("gradient", "outer.bias")
    'gradient of outer.bias'
    """
    own = tensor.startswith(f"({phase})")
    return tensor.strip("()") if own else f"{NOUNS[phase]} of {tensor}"


class Outcome(StrEnum):
    """How a run compares with one device."""

    EQUAL = "equal"
    INCONSISTENT = "inconsistent"
    NOT_DETERMINISTIC = "not deterministic"
    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"
    REFUSED = "refused by the library"
    NOT_RUN = "not run"
    REFERENCE_NOT_FINITE = "reference not finite"


FINDINGS: Final = frozenset(
    {
        Outcome.INCONSISTENT,
        Outcome.NOT_DETERMINISTIC,
        Outcome.CRASH,
        Outcome.HANG,
        Outcome.SLOW,
    }
)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A distributed setting: one value for each parameter.

    Attributes
    ----------
    engine
        Name of a folder in ``tapml/distributed/engines``, or of an entry point.
    world
        The number of ranks.
    options
        Values of the engine's own parameters, in its order.
    """

    engine: str
    world: int
    options: dict[str, str] = {}

    @property
    def name(self) -> str:
        """A short name, such as ``ddp x 2``; the options' values follow."""
        return self.named(self.options)

    def named(self, shown: Mapping[str, str]) -> str:
        """The name with these options only; numbers, yes and no have the option's name."""
        values = [
            f"{name}={value}" if value in ("yes", "no", "none") or value.isdigit() else value
            for name, value in shown.items()
        ]
        return f"{self.engine} x {self.world} {'/'.join(values)}".rstrip()

    def differs_in(self, other: Setting) -> list[str]:
        """Names of the parameters with another value, of two settings of one engine.

        Of different engines, ``engine`` and perhaps ``world``: their own parameters are not alike.
        """
        found = ["world"] if self.world != other.world else []
        if self.engine != other.engine:
            return ["engine", *found]
        names = dict.fromkeys((*self.options, *other.options))
        return found + [name for name in names if self.options.get(name) != other.options.get(name)]


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that differs from one device's.

    Attributes
    ----------
    phase
        One of :data:`PHASES`.
    step
        The training step, from 1; 0 before the first, and for predictions the last.
    tensor
        Name of the parameter, buffer or module.
    ranks
        Ranks that differ.
    error
        Largest difference over the tensor's largest value; infinite if a value is missing, or not
        finite on one side only.
    limit
        The allowed error.
    ratio
        Norm of the distributed tensor over the norm of the reference's; None if that is zero.
    note
        What is special, such as a missing tensor.
    """

    phase: str
    step: int
    tensor: str
    ranks: tuple[int, ...]
    error: float
    limit: float
    ratio: float | None = None
    note: str = ""

    @property
    def words(self) -> str:
        """The tensor in words, such as ``gradient of layer.weight``."""
        return tensor_words(self.phase, self.tensor)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The element of the first wrong tensor that differs most, on the first wrong rank.

    `index` counts in what that rank holds: its shard or its samples.
    """

    rank: int
    index: tuple[int, ...]
    expected: float
    actual: float
    max_absolute: float
    wrong_elements: int
    elements: int


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One setting compared with one device.

    Attributes
    ----------
    outcome
        The comparison's result.
    reason
        One sentence: what differs, what was raised, or why it was not run.
    phase, step, tensor, ranks, ratio, error, limit
        Those of the first wrong tensor in dataflow order, see :class:`Deviation`. After a crash or
        a hang, `ranks` are the culprits, and `phase` is what they were doing.
    precision
        ``float64``, or ``float32`` where the engine or the job has no float64 twin.
    place
        The worst element of the first wrong tensor.
    mistake, remedy
        The mistake that reproduces what was seen, and what to do; empty if none does.
    triggers
        Parameters that change the outcome when they change alone: ``world``, ``engine``,
        ``BatchNorm``, ``dropout``.
    published
        The paper's verdict on the float32 predictions, ``equal`` or ``inconsistent``; None if
        there are none to compare.
    rounding
        Largest float32 error of all tensors, for information.
    deviations
        The first wrong tensors, in dataflow order; `wrong` counts all, by phase.
    layer
        Class of the module that the first wrong tensor belongs to.
    published_layer, published_rate
        The layer whose rate of change is largest, and the rate, see
        :mod:`tapml.distributed.rates`; empty and None if there is none.
    compared
        How many tensors were compared, by phase.
    not_compared
        Tensors that could not be aligned with the reference's, with reasons.
    details
        Lines about a crash or a hang: what each rank was doing.
    seconds
        Time of the float32 run.
    """

    setting: Setting
    outcome: Outcome
    reason: str = ""
    phase: str = ""
    step: int = 0
    tensor: str = ""
    ranks: tuple[int, ...] = ()
    ratio: float | None = None
    error: float | None = None
    limit: float | None = None
    precision: str = ""
    place: Place | None = None
    mistake: str = ""
    remedy: str = ""
    triggers: tuple[str, ...] = ()
    published: str | None = None
    rounding: float | None = None
    deviations: tuple[Deviation, ...] = ()
    wrong: dict[str, int] = {}
    layer: str = ""
    published_layer: str = ""
    published_rate: float | None = None
    compared: dict[str, int] = {}
    not_compared: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def first_wrong(self) -> str:
        """The first wrong tensor in words; what failed after a crash or a hang; or empty."""
        return tensor_words(self.phase, self.tensor) if self.tensor else self.phase

    @property
    def is_finding(self) -> bool:
        """Whether it is a result that a user must look at."""
        return self.outcome in FINDINGS


class PairResult(msgspec.Struct, frozen=True, kw_only=True):
    """Two settings compared with each other.

    Attributes
    ----------
    first, second
        Names of the settings.
    differs_in
        Parameters with other values; see :meth:`Setting.differs_in`.
    equal
        Whether nothing is beyond its limit.
    phase, tensor, ratio
        Those of the first tensor that differs, the second's over the first's.
    error
        Its error; of equal settings, the largest.
    """

    first: str
    second: str
    differs_in: tuple[str, ...]
    equal: bool
    phase: str = ""
    tensor: str = ""
    ratio: float | None = None
    error: float = 0.0


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job before it is distributed.

    Attributes
    ----------
    samples
        Samples of the whole batch.
    parameters, frozen, elements
        Number of parameters, of those that need no gradient, and of all their elements.
    random
        Whether the step draws random numbers.
    batch_norm, dropout
        Names of modules of these kinds.
    twin
        Whether the float64 twin judges; `twin_reason` says why not.
    trains
        Whether any parameter changes on one device.
    """

    samples: int
    parameters: int
    frozen: int
    elements: int
    random: bool
    batch_norm: tuple[str, ...]
    dropout: tuple[str, ...]
    twin: bool
    twin_reason: str = ""
    trains: bool = True


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A job checked under several settings.

    Attributes
    ----------
    job, digest
        Its path, and the SHA-256 of its file.
    steps
        Training steps of each run.
    facts
        See :class:`JobFacts`.
    results
        One for each setting, in the order they were asked for.
    versions
        Of tapml, Python and torch.
    seconds
        Time of all of it.
    pairs
        Settings against each other, if that was asked for.
    measured
        Whether the limits of float32 come from measured sensitivities; those of recordings do not.
    """

    job: str
    digest: str
    steps: int
    facts: JobFacts
    results: tuple[RunResult, ...]
    versions: dict[str, str]
    seconds: float
    pairs: tuple[PairResult, ...] = ()
    measured: bool = True
    format: str = FORMAT

    @property
    def findings(self) -> tuple[RunResult, ...]:
        """The results that a user must look at."""
        return tuple(each for each in self.results if each.is_finding)

    @property
    def exit_code(self) -> int:
        """0 if all settings are equal, 1 on a finding, 2 if one could not be judged."""
        if self.findings:
            return EXIT_MISMATCH
        equal = all(each.outcome is Outcome.EQUAL for each in self.results)
        return 0 if equal else EXIT_USAGE

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that are not finite become text."""
        from tapml.durable.strict_json import to_strict

        plain: dict[str, Any] = to_strict(msgspec.to_builtins(self))
        return plain
