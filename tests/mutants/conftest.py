"""Mutants of a tiny model's operators, drawn by a fixed seed and scored once for all tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts.mutants.kinds import sites
from scripts.mutants.sampling import draw
from scripts.mutants.scoring import Score, Scorer
from scripts.mutants.subject import Device, open_subject
from tapml_targets.ranking import find_device
from tests.offload.sessions import FinishedSession

COUNT = 30
SEED = 20261120


@pytest.fixture(scope="session")
def scores(
    finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Score, ...]:
    """Two mutants of each kind."""
    root = tmp_path_factory.mktemp("mutants")
    suite = Path(shutil.copytree(finished.folder / "suite", root / "suite"))
    description = find_device(finished.device, "float32")
    cache = finished.copy_cache(root / "cache")
    with (
        open_subject(suite, description, per_operator=3, compiled=cache / "libraries") as subject,
        Device(description, cache) as device,
    ):
        places = {name: sites(library) for name, library in subject.libraries.items()}
        mutants = sorted(draw(places, COUNT, SEED), key=lambda mutant: mutant.operator)
        return tuple(Scorer(subject, device).score(mutants))
