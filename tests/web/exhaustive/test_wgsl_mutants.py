"""Wrong kernels made by rule from WGSL are found in a browser, each at its own operator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.mutants.kinds import KINDS, sites
from scripts.mutants.sampling import draw
from scripts.mutants.scoring import Score, Scorer
from scripts.mutants.subject import FarDevice, open_subject
from tapml.devices.reach import describe_device
from tests.offload.sessions import FinishedSession
from tests.web.pages import NAME, DevicePage

SEED = 20261122


@pytest.fixture(scope="module")
def scores(
    finished: FinishedSession,
    shown: DevicePage,
    webgpu_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Score, ...]:
    """One mutant of each kind, scored over one page; each operator's right kernel passes first."""
    root = tmp_path_factory.mktemp("mutants")
    suite = Path(shutil.copytree(finished.folder / "suite", root / "suite"))
    spec = f"tracker:{NAME}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPML_TRACKER", shown.tracker.address)
        description = describe_device(spec)
        with (
            open_subject(
                suite, description, per_operator=2, compiled=webgpu_cache / "libraries"
            ) as subject,
            FarDevice(description, spec) as device,
        ):
            places = {name: sites(library) for name, library in subject.libraries.items()}
            assert sum(len(found) for each in places.values() for found in each.values()) > 10_000
            mutants = sorted(draw(places, len(KINDS), SEED), key=lambda mutant: mutant.operator)
            return tuple(Scorer(subject, device).score(mutants))


def test_one_of_every_kind_is_made_and_runs_in_the_browser(scores: tuple[Score, ...]) -> None:
    assert {score.mutant.site.kind for score in scores} == set(KINDS)
    assert len({score.mutant.operator for score in scores}) == len(KINDS)
    # A constant beyond its type, or a negative index, is one that WGSL does not take.
    refused = [score for score in scores if score.outcome == "not built"]
    assert len(refused) <= 2
    assert all("does not compile in this browser" in score.reason for score in refused)


def test_every_one_that_changes_a_bit_is_found_at_its_operator(scores: tuple[Score, ...]) -> None:
    """What is replayed is one operator's tests with one wrong kernel: its name is the verdict's."""
    missed = [score for score in scores if score.outcome == "missed"]
    # Any number near the largest will do for what a softmax subtracts, and an exponential that
    # would overflow does not where the numbers are small: these compute as well.
    as_good = [
        score
        for score in missed
        if score.mutant.operator.startswith("softmax")
        or score.mutant.site.kind == "unsafe exponential"
    ]
    assert [score.to_json() for score in missed if score not in as_good] == []
    assert all(score.relative < 0.5 for score in as_good)
    found = [score for score in scores if score.outcome == "detected"]
    assert len(found) >= 10
    assert all(score.clean < 1 for score in found)


def test_a_mutant_that_changes_no_bit_passes_like_the_right_kernel(
    scores: tuple[Score, ...],
) -> None:
    for score in scores:
        if score.outcome == "equivalent":
            assert (score.observed, score.status) == ("", "pass")
