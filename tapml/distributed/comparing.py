"""One setting compared with one device: its runs, its outcome, and the mistake behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tapml.distributed.culprits import blame, refused_alone
from tapml.distributed.engine import Engine, Served
from tapml.distributed.explaining import APART, explain
from tapml.distributed.judging import FLOAT32, Judgement, judge, published_verdict, worst_place
from tapml.distributed.judging import FLOAT64 as FLOAT64_LIMITS
from tapml.distributed.mistakes import Mistake
from tapml.distributed.pairing import Comparable, pairs_of
from tapml.distributed.rates import class_of, rates_of_change
from tapml.distributed.results import BATCH_NORM, DROPOUT, Outcome, PairResult, RunResult, Setting
from tapml.distributed.run_records import Run
from tapml.distributed.runner import FLOAT64, Pair, Runner, serving_limits
from tapml.distributed.wording import sentence
from tapml.isolate.death import GroupDiedError
from tapml_targets.errors import RefusedError, SetupError, WrongJobError

_DEVIATIONS_KEPT: Final = 20
# What is imported with the first step takes seconds on a machine that does much else.
_SLOW_SECONDS: Final = 30.0
_SLOW_FACTOR: Final = 20.0


@dataclass(frozen=True)
class Comparison:
    """Compares settings.

    Attributes
    ----------
    runner
        Starts the runs.
    random
        Whether the job's step draws random numbers.
    runs
        The last run of each setting that ended, by the setting's name.
    """

    runner: Runner
    random: bool
    runs: dict[str, Pair] = field(default_factory=dict)

    def result(self, setting: Setting, engine: Engine) -> RunResult:
        """Run one setting and compare it."""
        reason = self.runner.why_not(setting, engine)
        if reason:
            return RunResult(setting=setting, outcome=Outcome.NOT_RUN, reason=reason)
        served = engine.served(setting)
        try:
            if served is not None:
                return self._served(setting, engine, served)
            return self._compared(setting, engine)
        except GroupDiedError as error:
            return failed(setting, error)

    def _served(self, setting: Setting, engine: Engine, served: Served) -> RunResult:
        """Serve the trained model from one device and from shards."""
        runner = self.runner
        try:
            reference = runner.reference((), served).float32
        except GroupDiedError as error:
            said = first_line(str(error.__cause__ or error.report.reason))
            return RunResult(
                setting=setting, outcome=Outcome.REFUSED, reason=f"on one device too: {said}"
            )
        pair = runner.pair(engine, setting)
        self.runs[setting.name] = pair
        judgement = runner.judge_served(pair.float32, served, setting.world)
        common = RunResult(
            setting=setting,
            outcome=Outcome.EQUAL,
            precision="float32",
            published=published_verdict(reference, pair.float32, runner.tensors),
            rounding=judgement.worst,
            compared=judgement.compared,
            not_compared=tuple(f"{k}: {v}" for k, v in judgement.not_compared.items()),
            seconds=pair.float32.seconds,
        )
        if not judgement.deviations:
            return common
        twice = runner.pair(engine, setting).float32
        again = runner.judge_served(twice, served, setting.world)
        return self._inconsistent(common, engine, judgement, again, reference, twice)

    def _compared(self, setting: Setting, engine: Engine) -> RunResult:
        runner = self.runner
        pair = runner.pair(engine, setting)
        judgement, precision = runner.judge(pair)
        before = judgement
        if judgement.deviations:
            # Once more, with the values of all replicas. It also shows what differs by chance.
            pair = runner.pair(engine, setting, send_all=True)
            judgement, precision = runner.judge(pair)
        self.runs[setting.name] = pair
        reference = runner.reference(())
        common = RunResult(
            setting=setting,
            outcome=Outcome.EQUAL,
            precision=precision,
            published=published_verdict(reference.float32, pair.float32, runner.tensors),
            rounding=judgement.worst if precision == "float32" else self._rounding(pair),
            compared=judgement.compared,
            not_compared=tuple(f"{k}: {v}" for k, v in judgement.not_compared.items()),
            seconds=pair.float32.seconds,
        )
        if not before.deviations:
            return _perhaps_slow(common, reference.float32.seconds)
        mistake: Mistake | None = None
        triggers: tuple[str, ...] = ()
        if _alike(before, judgement):
            mistake, triggers = self._explained(setting, engine, pair, judgement, precision)
        found = self._inconsistent(
            common, engine, before, judgement, reference.of(precision), pair.of(precision)
        )
        return msgspec.structs.replace(
            found,
            mistake="" if mistake is None else mistake.text,
            remedy="" if mistake is None else mistake.remedy,
            triggers=triggers,
        )

    def _inconsistent(
        self,
        common: RunResult,
        engine: Engine,
        before: Judgement,
        judgement: Judgement,
        one: Run,
        run: Run,
    ) -> RunResult:
        """What differs, of a setting that was judged twice; or that it differs by chance."""
        runner, setting = self.runner, common.setting
        first = (judgement.deviations or before.deviations)[0]
        common = msgspec.structs.replace(
            common, phase=first.phase, step=first.step, tensor=first.tensor, ranks=first.ranks
        )
        if not _alike(before, judgement):
            return msgspec.structs.replace(
                common,
                outcome=Outcome.NOT_DETERMINISTIC,
                reason=f"two equal runs differ: {first.words}",
            )
        layer, rate = self._largest_rate(setting, engine)
        return msgspec.structs.replace(
            common,
            outcome=Outcome.INCONSISTENT,
            reason=sentence(first, len(run.ranks)),
            ratio=first.ratio,
            error=first.error,
            limit=first.limit,
            place=worst_place(first, one, run, runner.tensors, common.precision),
            deviations=judgement.deviations[:_DEVIATIONS_KEPT],
            wrong=dict(Counter(each.phase for each in judgement.deviations)),
            layer=class_of(first.tensor, runner.plan.modules),
            published_layer=layer,
            published_rate=rate,
        )

    def _rounding(self, pair: Pair) -> float:
        """The largest error of float32, where float64 judges."""
        reference = self.runner.reference(()).float32
        return judge(reference, pair.float32, self.runner.tensors, FLOAT32).worst

    def pairs(self, settings: Sequence[tuple[Setting, Engine]]) -> list[PairResult]:
        """Every two settings that run, against each other; what has no run here runs again."""
        runner = self.runner
        runs = []
        for setting, engine in settings:
            pair = self.runs.get(setting.name)
            if pair is None and not runner.why_not(setting, engine):
                with suppress(GroupDiedError):
                    pair = runner.pair(engine, setting, send_all=True)
            if pair is not None:
                served = engine.served(setting)
                if served is not None:
                    limits = serving_limits(served, max(each.world for each, _ in settings))
                    kind: object = served.formats
                elif pair.float64 is None:
                    kind, limits = "float32", runner.float32_limits()
                else:
                    kind, limits = FLOAT64, FLOAT64_LIMITS
                runs.append(Comparable(setting, pair.of(FLOAT64), kind, limits))
        (alone,) = runner.reference(()).float32.ranks
        orders = {key: record.order for key, record in alone.items()}
        return pairs_of(runs, runner.tensors, orders)

    def _largest_rate(self, setting: Setting, engine: Engine) -> tuple[str, float | None]:
        """The class of the layer with the largest rate of change, and the rate."""
        try:
            reference, run = self.runner.hidden_states(engine, setting)
        except GroupDiedError:
            return "", None  # It does not run alike twice.
        found = rates_of_change(reference, run, self.runner.tensors)
        if not found:
            return "", None
        name = max(found, key=lambda each: found[each])
        return class_of(name, self.runner.plan.modules), found[name]

    def _explained(
        self, setting: Setting, engine: Engine, pair: Pair, judgement: Judgement, precision: str
    ) -> tuple[Mistake | None, tuple[str, ...]]:
        """The mistake, and the kinds of layers without which, alone, there is no difference."""
        runner, world = self.runner, setting.world
        kinds = self._kinds()
        for off in _choices(kinds):
            if self._is_equal_without(engine, setting, off):
                return _joined([APART[kind] for kind in off]), off
        off = ()
        try:
            if kinds:
                # Something else is wrong as well: look at it without the noise of these layers.
                quiet = runner.pair(engine, setting, off=kinds, send_all=True)
                judgement, precision = runner.judge(quiet, kinds)
                off, pair = kinds, quiet

            def slices_of(step: int, weights: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
                gradients = {
                    name: {"tensor": value}
                    for (phase, number, name), record in reference.ranks[0].items()
                    if (phase, number) == ("gradient", step) and record.digest
                    for value in (runner.tensors.get(record.digest),)
                    if value is not None
                }
                return runner.slices(engine, world, step, weights, gradients, precision, off)

            reference = runner.reference(off).of(precision)
            run = pair.of(precision)
            plan = runner.plan.given_to(engine)
            return explain(
                judgement, reference, run, runner.tensors, plan, precision, slices_of
            ), ()
        except GroupDiedError:
            return None, ()  # The step does not run so.

    def _kinds(self) -> tuple[str, ...]:
        """Kinds of layers in the job that mix samples or draw random numbers."""
        plan = self.runner.plan
        found = (BATCH_NORM,) if plan.batch_norm else ()
        return (*found, DROPOUT) if plan.dropout or self.random else found

    def _is_equal_without(self, engine: Engine, setting: Setting, off: tuple[str, ...]) -> bool:
        try:
            pair = self.runner.pair(engine, setting, off=off)
            return not self.runner.judge(pair, off)[0].deviations
        except GroupDiedError:
            return False


def failed(setting: Setting, error: GroupDiedError) -> RunResult:
    """The result of a run whose ranks did not all answer."""
    report, cause = error.report, error.__cause__
    alone = refused_alone(report) if isinstance(cause, RefusedError | WrongJobError) else None
    if isinstance(cause, RefusedError | SetupError | WrongJobError) and alone is None:
        refused = isinstance(cause, RefusedError)
        outcome = Outcome.REFUSED if refused else Outcome.NOT_RUN
        return RunResult(setting=setting, outcome=outcome, reason=first_line(str(cause)))
    found = alone or blame(report)
    hung = report.death is not None and report.death.deadline_seconds > 0
    return RunResult(
        setting=setting,
        outcome=Outcome.HANG if hung else Outcome.CRASH,
        reason=found.reason,
        phase=found.stage,
        ranks=found.ranks,
        remedy=found.remedy,
        details=found.details,
    )


def first_line(text: str) -> str:
    """The first line of an error's text."""
    return text.strip().partition("\n")[0]


def _perhaps_slow(result: RunResult, once: float) -> RunResult:
    """The result, or that it is slow: far beyond one device's time for each rank."""
    if result.seconds <= max(_SLOW_SECONDS, _SLOW_FACTOR * result.setting.world * once):
        return result
    return msgspec.structs.replace(
        result,
        outcome=Outcome.SLOW,
        reason=f"{result.seconds:.1f} s where one device takes {once:.2f} s",
    )


def _alike(first: Judgement, second: Judgement) -> bool:
    """Whether two runs of one setting are wrong in the same way."""
    if not first.deviations or not second.deviations:
        return False
    a, b = first.deviations[0], second.deviations[0]
    if (a.phase, a.step, a.tensor) != (b.phase, b.step, b.tensor):
        return False
    # The first run may not know by how much a replica differs.
    return first.unknown or a.error == b.error or abs(a.error - b.error) <= 0.01 * b.error


def _choices(kinds: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Each kind alone, then all."""
    alone: list[tuple[str, ...]] = [(kind,) for kind in kinds]
    return [*alone, kinds] if len(kinds) > 1 else alone


def _joined(causes: Sequence[Mistake]) -> Mistake:
    return Mistake(
        "; ".join(each.text for each in causes), "; ".join(each.remedy for each in causes)
    )
