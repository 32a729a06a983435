"""Silent errors of many kinds of training; scripts/invariants_further.py has the whole table."""

from __future__ import annotations

import pytest

from scripts.invariants_further import recorded_run, study
from scripts.training_errors.further import FURTHER
from tapml.invariants import watch
from tapml.invariants.checking import CheckReport
from tapml.invariants.inference import infer


def violated(report: CheckReport) -> set[str]:
    """The relations that are violated."""
    return {each.invariant.relation for cause in report.causes for each in cause.findings}


@pytest.mark.parametrize(
    ("program", "relation"),
    [
        ("amp-disabled", "UsedInEveryRun"),
        ("bptt-state-lost", "StateCarried"),
        ("contrastive-same-view", "DistinctInputs"),
        ("cosine-other-optimizer", "ScheduledOptimizer"),
        ("curriculum-stuck", "InputsChange"),
        ("diffusion-one-noise", "TargetsChange"),
        ("distil-teacher-moves", "VariableAttribute"),
        ("gan-undetached", "GradientsUsed"),
        ("reinforce-attached", "LossInGraph"),
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
