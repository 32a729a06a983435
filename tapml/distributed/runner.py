"""Starts the runs of a check and keeps those of one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tapml.distributed.engine import Engine, Served
from tapml.distributed.frameworks import TORCH, Framework
from tapml.distributed.judging import FLOAT32, Judgement, Limits, judge
from tapml.distributed.judging import FLOAT64 as FLOAT64_LIMITS
from tapml.distributed.plan import Plan, RunRequest
from tapml.distributed.results import Setting
from tapml.distributed.run_records import Run, Tensors, read_run
from tapml.distributed.sensitivity import sensitivity_limits
from tapml.isolate.death import GroupDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool

if TYPE_CHECKING:
    from tapml.distributed.machines.groups import MachineGroups

FLOAT64: Final = "float64"
_PERTURBED: Final = 3
# Errors of float32 that the twin does not show are looked at from here on, and are a fault if they
# are so many times what one unit in the last place of the weights does.
_SUSPECT: Final = 1e-3
_FAR_BEYOND: Final = 4.0


@dataclass(frozen=True)
class Pair:
    """The runs of one setting in float32 and, if there is a twin, in float64."""

    float32: Run
    float64: Run | None

    def of(self, precision: str) -> Run:
        """The run in a precision; that in float32 if there is no other."""
        return self.float64 if precision == FLOAT64 and self.float64 else self.float32


def serving_limits(served: Served, world: int) -> Limits:
    """Limits of what is served: every rank may round its part of a sum."""
    return replace(FLOAT32, base=max(FLOAT32.base, world * served.roundoff))


@dataclass
class Runner:
    """Runs a plan.

    Attributes
    ----------
    pool
        Starts groups of processes, here or also on other machines.
    environment
        Where the runs are forked.
    framework
        What the job is written in.
    references
        One device, by the kinds of layers that are switched off, and by how it serves.
    twin
        Whether the float64 twin judges.
    roundoff
        Unit roundoff of the shortest format that the job computes in.
    """

    pool: Pool | MachineGroups
    plan: Plan
    environment: Environment
    framework: Framework = TORCH
    tensors: Tensors = field(default_factory=Tensors)
    references: dict[tuple[tuple[str, ...], Served | None], Pair] = field(default_factory=dict)
    twin: bool = True
    roundoff: float = FLOAT32.epsilon
    _limits: dict[tuple[str, ...], Limits] = field(default_factory=dict)
    _hidden: dict[Served | None, Run] = field(default_factory=dict)

    def why_not(self, setting: Setting, engine: Engine) -> str:
        """Why a setting cannot be run; empty if it can."""
        reason = self.plan.why_not(setting, engine)
        options = getattr(engine.settings, "COMMON_FOLDER", ())
        needs = [name for name in options if setting.options.get(name, "none") != "none"]
        if reason or not needs or isinstance(self.pool, Pool):
            return reason
        return f"{needs[0]}: the workers have no common folder for a checkpoint"

    def start(self, request: RunRequest) -> Future[list[Any]]:
        """Start a run."""
        payload, ranks = self.plan.payload(request), request.ranks
        if self.framework.one_process:
            payload["world"], ranks = ranks, 1
        return self._group(ranks, self.framework.run, payload)

    def read(self, future: Future[list[Any]]) -> Run:
        """Wait for a run. Raises GroupDiedError if it failed."""
        answers = future.result()
        return read_run(answers[0] if self.framework.one_process else answers, self.tensors)

    def reference(self, off: tuple[str, ...], served: Served | None = None) -> Pair:
        """One device, training without these kinds of layers or serving; run once.

        Raises GroupDiedError.
        """
        if (off, served) not in self.references:
            request = RunRequest(off=off, served=served)
            plain, twin = self.start(request), None
            if self.twin and served is None:
                twin = self.start(replace(request, precision=FLOAT64))
            found = self.read(plain)
            self.references[off, served] = Pair(found, None if twin is None else self.read(twin))
        return self.references[off, served]

    def pair(
        self,
        engine: Engine,
        setting: Setting,
        *,
        off: tuple[str, ...] = (),
        send_all: bool = False,
    ) -> Pair:
        """Run a setting in both precisions side by side. Raises GroupDiedError."""
        request = RunRequest(
            engine, setting, off=off, send_all=send_all, served=engine.served(setting)
        )
        plain, twin = self.start(request), None
        if self.twin and engine.settings.FLOAT64:
            twin = self.start(replace(request, precision=FLOAT64))
        found = self.read(plain)
        try:
            return Pair(found, None if twin is None else self.read(twin))
        except GroupDiedError:
            return Pair(found, None)  # The engine does not do float64.

    def hidden_states(self, engine: Engine, setting: Setting) -> tuple[Run, Run]:
        """One device and the ranks, with the trained model's hidden states in float32.

        Raises GroupDiedError.
        """
        served = engine.served(setting)
        started = self.start(RunRequest(engine, setting, hidden=True, served=served))
        if served not in self._hidden:
            alone = self.start(RunRequest(hidden=True, served=served))
            self._hidden[served] = self.read(alone)
        return self._hidden[served], self.read(started)

    def judge(self, pair: Pair, off: tuple[str, ...] = ()) -> tuple[Judgement, str]:
        """Compare with one device, and say in which precision.

        In float64, or in float32 where there is no twin, or the twin misses the fault.
        """
        reference = self.reference(off)
        if pair.float64 is not None and reference.float64 is not None:
            found = judge(reference.float64, pair.float64, self.tensors, FLOAT64_LIMITS)
            if found.deviations or not self._beyond_rounding(reference, pair, off):
                return found, FLOAT64
        limits = self._sensitivity(off)
        return judge(reference.float32, pair.float32, self.tensors, limits), "float32"

    def judge_served(self, run: Run, served: Served, world: int) -> Judgement:
        """Compare what a setting serves with what one device does."""
        reference = self.reference((), served).float32
        return judge(reference, run, self.tensors, serving_limits(served, world))

    def float32_limits(self) -> Limits:
        """Limits of float32, by the measured sensitivities of one device."""
        return self._sensitivity(())

    def slices(
        self,
        engine: Engine,
        world: int,
        step: int,
        weights: Mapping[str, Any],
        gradients: Mapping[str, Any],
        precision: str,
        off: tuple[str, ...],
    ) -> Sequence[Mapping[str, Any]]:
        """The gradients of each rank's samples alone. Raises GroupDiedError.

        `weights` and `gradients` are one device's, before the step and in it.
        """
        ranks = self.plan.given_to(engine).parts[str(world)]["steps"][step - 1]
        payload = self.plan.payload(RunRequest(precision=precision, off=off))
        payload |= {"weights": dict(weights), "gradients": dict(gradients)}
        payload["batches"] = [batch for batch, _ in ranks]
        (found,) = self._group(1, self.framework.slices, payload).result()
        return list(found)

    def _beyond_rounding(self, reference: Pair, pair: Pair, off: tuple[str, ...]) -> bool:
        """Whether float32 is far worse than rounding makes this model."""
        plain = judge(reference.float32, pair.float32, self.tensors, FLOAT32)
        if plain.worst < _SUSPECT:
            return False
        limits = self._sensitivity(off)
        return any(
            error > _SUSPECT and error > _FAR_BEYOND * limits.of(key)
            for key, error in plain.errors.items()
        )

    def _sensitivity(self, off: tuple[str, ...]) -> Limits:
        """Limits of float32, measured once."""
        if off not in self._limits:
            futures = [
                self.start(RunRequest(off=off, perturb=seed + 1, roundoff=self.roundoff))
                for seed in range(_PERTURBED)
            ]
            runs = [self.read(each) for each in futures]
            reference = self.reference(off).float32
            self._limits[off] = sensitivity_limits(reference, runs, self.tensors, self.roundoff)
        return self._limits[off]

    def _group(self, size: int, job: str, payload: dict[str, Any]) -> Future[list[Any]]:
        seconds = self.plan.deadline_seconds
        return self.pool.group(
            size,
            job,
            payload,
            folder=True,
            environment=self.environment,
            deadline_seconds=seconds,
        )
