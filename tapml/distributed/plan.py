"""What all runs of a check have in common: the job, its weights, its batches and its samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tapml.distributed.engine import OWN, Engine, Served, Traits, find_engine
from tapml.distributed.results import Setting

DEFAULT_ENGINES: Final = ("ddp", "fsdp2")
USUAL: Final = (*DEFAULT_ENGINES, OWN)
"""Engines whose modules every check imports."""


@dataclass(frozen=True)
class RunRequest:
    """A run to make of a plan.

    Attributes
    ----------
    engine, setting
        None for one device.
    precision
        ``float32``, which stands for the job's own, or ``float64``.
    off
        Kinds of layers that are switched off.
    send_all
        Whether every rank sends the values of replicated tensors.
    hidden
        Whether the trained model's hidden states are recorded.
    observe
        Whether the formats of all operations are noted.
    perturb, roundoff
        The seed by which weights are moved, and how far; no seed is 0.
    served
        How the trained model is served; None if training is what is compared.
    """

    engine: Engine | None = None
    setting: Setting | None = None
    precision: str = "float32"
    off: tuple[str, ...] = ()
    send_all: bool = False
    hidden: bool = False
    observe: bool = False
    perturb: int = 0
    roundoff: float = 0.0
    served: Served | None = None

    @property
    def ranks(self) -> int:
        """How many processes take part: one device is one, and one serves all shards."""
        return 1 if self.setting is None or self.served is not None else self.setting.world


@dataclass(frozen=True)
class Plan:
    """A prepared job.

    Attributes
    ----------
    job
        Its file.
    steps
        Training steps.
    worlds
        The worlds to run.
    has
        Which optional functions the file defines.
    modules
        Names of the classes of all modules, by path.
    weights
        Packed parameters and buffers by name.
    batches
        Packed batches by step.
    parts
        By world, ``{"reason": ..., "steps": [[[batch, samples] by rank] by step]}``.
    samples
        Samples of the first batch.
    parameters
        (name, elements, whether it needs a gradient).
    batch_norm, dropout
        Names of layers of these kinds.
    preload
        Modules that the job imports slowly.
    sources
        Hashes of the job's file and of the modules beside it that it imports, by name.
    deadline_seconds
        Of each run.
    """

    job: Path
    steps: int
    worlds: tuple[int, ...]
    has: Mapping[str, bool]
    modules: Mapping[str, str]
    weights: Mapping[str, Any]
    batches: tuple[Any, ...]
    parts: Mapping[str, Any]
    samples: int
    parameters: tuple[tuple[str, int, bool], ...]
    batch_norm: tuple[str, ...]
    dropout: tuple[str, ...]
    preload: tuple[str, ...]
    sources: Mapping[str, str]
    deadline_seconds: float

    @classmethod
    def of(cls, job: Path, answer: Mapping[str, Any], deadline_seconds: float) -> Plan:
        """The plan that :func:`tapml.distributed.preparing.prepare` answered."""
        plain = dict(answer)
        for name in ("worlds", "batches", "batch_norm", "dropout", "preload"):
            plain[name] = tuple(plain[name])
        plain["parameters"] = tuple(
            (name, size, learns) for name, size, learns in plain["parameters"]
        )
        return cls(job=job, deadline_seconds=deadline_seconds, **plain)

    @property
    def frozen(self) -> frozenset[str]:
        """Names of the parameters that need no gradient."""
        return frozenset(name for name, _, learns in self.parameters if not learns)

    def given_to(self, engine: Engine | None) -> Plan:
        """The plan with the samples that the engine's ranks get: their parts, or all of them."""
        if engine is None or engine.settings.SPLITS:
            return self
        whole = [[batch, list(range(self.samples))] for batch in self.batches]
        parts = {
            world: {"reason": "", "steps": [[each] * int(world) for each in whole]}
            for world in self.parts
        }
        return replace(self, parts=parts)

    def engines(self, names: tuple[str, ...] | None) -> list[Engine]:
        """The engines to run: the given ones, else the job's own wrapping, else the usual ones."""
        if names is None:
            names = (OWN,) if self.has["distribute"] else DEFAULT_ENGINES
        return [find_engine(name) for name in dict.fromkeys(names)]

    @property
    def traits(self) -> Traits:
        """What settings may depend on."""
        functions = frozenset(name for name, defined in self.has.items() if defined)
        return Traits(self.has["distribute"], self.modules, functions)

    def why_not(self, setting: Setting, engine: Engine) -> str:
        """Why a setting cannot be run; empty if it can."""
        library = engine.settings
        refused = library.missing(setting) or library.refuse(setting, self.traits)
        if refused or engine.served(setting) is not None:
            return refused
        return str(self.given_to(engine).parts[str(setting.world)]["reason"])

    def samples_of(self, world: int, step: int) -> list[int]:
        """How many samples each rank has in a step, from 1; 0 where they are not known."""
        ranks = self.parts[str(world)]["steps"][step - 1]
        return [0 if rows is None else len(rows) for _, rows in ranks]

    def covers(self, world: int, step: int) -> bool | None:
        """Whether the ranks together have every sample once in a step; None if not known."""
        ranks = [rows for _, rows in self.parts[str(world)]["steps"][step - 1]]
        if None in ranks:
            return None
        return sorted(row for rows in ranks for row in rows) == list(range(self.samples))

    def payload(self, request: RunRequest) -> dict[str, Any]:
        """The payload of :func:`tapml.distributed.rank.run`."""
        engine, setting, served = request.engine, request.setting, request.served
        options = {} if setting is None else setting.options
        if engine is None or setting is None or served is not None:
            every = [[[batch, list(range(self.samples))]] for batch in self.batches]
        else:
            every = self.given_to(engine).parts[str(setting.world)]["steps"]
        serve = None
        if served is not None:
            serve = {
                "engine": served.package,
                "world": 0 if setting is None else setting.world,
                "options": {**options, **dict(served.formats)},
            }
        return {
            "job": str(self.job),
            "engine": None if engine is None or serve else engine.package,
            "options": options,
            "precision": request.precision,
            "weights": dict(self.weights),
            "steps": every,
            "off": list(request.off),
            "send_all": request.send_all,
            "hidden": request.hidden,
            "observe": request.observe,
            "perturb": request.perturb,
            "roundoff": request.roundoff,
            "serve": serve,
            "deadline": self.deadline_seconds,
        }
