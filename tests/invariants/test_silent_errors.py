"""Silent errors of many kinds of training; scripts/invariants_further.py has the whole table."""

from __future__ import annotations

import pytest

from scripts.invariants_further import recorded_run, study
from scripts.training_errors.further import FURTHER
from scripts.training_errors.further.everyday import Script
from tapml.invariants import watch
from tapml.invariants.checking import CheckReport
from tapml.invariants.inference import infer
from tapml.invariants.invariant import InvariantSet, merged


def violated(report: CheckReport) -> set[str]:
    """The relations that are violated."""
    return {each.invariant.relation for cause in report.causes for each in cause.findings}


@pytest.mark.parametrize(
    ("program", "relation"),
    [
        ("amp-disabled", "UsedInEveryRun"),
        ("bptt-state-lost", "StateCarried"),
        ("class-weights-lost", "SettingKept"),
        ("contrastive-same-view", "DistinctInputs"),
        ("cosine-other-optimizer", "ScheduledOptimizer"),
        ("curriculum-stuck", "InputsChange"),
        ("diffusion-one-noise", "TargetsChange"),
        ("distil-teacher-moves", "VariableAttribute"),
        ("gan-undetached", "GradientsUsed"),
        ("reinforce-attached", "LossInGraph"),
        ("not-causal", "SettingKept"),
        ("regression-broadcast", "APIArg"),
        ("resume-moments-lost", "WeightsLoaded"),
        ("resume-schedule-lost", "UsedInEveryRun"),
        ("sam-not-undone", "BetweenSteps"),
        ("swa-stale-statistics", "UsedInEveryRun"),
        ("vmap-ensemble-one", "VarPeriodicChange"),
        ("wgan-unclipped", "BetweenSteps"),
        ("workers-one-noise", "DistinctBatches"),
    ],
)
def test_an_error_is_found_and_its_twin_is_silent(program: str, relation: str) -> None:
    _, twin, wrong = study(FURTHER[program][1])
    assert not violated(twin)
    assert relation in violated(wrong)


def test_models_under_transforms_are_recorded() -> None:
    _, twin, wrong = study(FURTHER["jvp-zero-tangent"][1])
    assert not violated(twin)
    assert violated(wrong)


@pytest.mark.parametrize(
    ("program", "relation"),
    [
        ("bptt-state-lost", "StateCarried"),
        ("diffusion-one-noise", "TargetsChange"),
        ("early-stop-last-weights", "BestSaved"),
        ("gan-undetached", "GradientsUsed"),
        ("reinforce-attached", "LossInGraph"),
        ("sam-not-undone", "BetweenSteps"),
    ],
)
def test_a_watch_finds_what_a_trace_shows(program: str, relation: str) -> None:
    train = FURTHER[program][1]
    learned = infer([recorded_run(train, seed, buggy=False) for seed in (1, 2)])
    for buggy in (False, True):
        with watch(invariants=learned, on_violation="report") as watched:
            train(3, buggy)
        assert (relation in violated(watched.report())) == buggy


@pytest.fixture(scope="module")
def usual() -> InvariantSet:
    """What two runs of the usual script show."""
    return infer([recorded_run(FURTHER["shuffle-lost"][1], seed, buggy=False) for seed in (1, 2)])


@pytest.mark.parametrize(
    ("mistake", "relation"),
    [
        ("", ""),
        ("clears-before-step", "EventContain"),
        ("clips-another-model", "GradientsClipped"),
        ("epoch-broken-off", "EpochComplete"),
        ("evaluates-a-copy", "VarPeriodicChange"),
        ("initialised-again", "BetweenSteps"),
        ("labels-of-before", "TargetOrigin"),
        ("labels-rolled", "TargetOrigin"),
        ("norms-stay-fixed", "SettingKept"),
        ("optimizer-each-epoch", "OptimizerKept"),
        ("saves-another", "WeightsSaved"),
        ("schedule-first", "APISequence"),
        ("shuffle-lost", "Reshuffled"),
        ("smoothing-lost", "SettingKept"),
        ("softmax-twice", "SettingKept"),
        ("summed-loss", "SettingKept"),
        ("weights-not-matched", "WeightsLoaded"),
    ],
)
def test_a_mistake_in_a_usual_script_is_found_while_it_trains(
    usual: InvariantSet, mistake: str, relation: str
) -> None:
    with watch(invariants=usual, on_violation="report") as watched:
        Script(3, mistake).run()
    found = violated(watched.report())
    assert relation in found if mistake else not found


def test_rules_about_one_program_do_not_apply_in_another(usual: InvariantSet) -> None:
    program = FURTHER["regression-broadcast"][1]
    other = infer([recorded_run(program, seed, buggy=False) for seed in (1, 2)])
    for learned, train in ((usual, program), (merged([usual, other]), FURTHER["summed-loss"][1])):
        with watch(invariants=learned, on_violation="report") as watched:
            train(3, True)
        assert "SettingKept" not in violated(watched.report())
