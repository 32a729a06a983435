"""What leaves every byte as it was is shown to Oclgrind, as ``tapml replay --check`` would be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from scripts.mutants.checking import Checking
from scripts.mutants.kinds import sites
from scripts.mutants.sampling import Mutant
from scripts.mutants.scoring import Score
from scripts.mutants.subject import open_subject
from tapml.check.checker import Checker
from tapml_targets.ranking import find_device
from tests.offload.sessions import FinishedSession

OPERATOR = "matmul_transposed_6"


def test_a_dropped_barrier_is_a_race_and_arithmetic_is_not_looked_at(
    finished: FinishedSession, checker: Checker, tmp_path: Path
) -> None:
    suite = Path(shutil.copytree(finished.folder / "suite", tmp_path / "suite"))
    compiled = finished.copy_cache(tmp_path / "cache") / "libraries"
    description = find_device(finished.device, "float32")
    with open_subject(suite, description, per_operator=1, compiled=compiled) as subject:
        places = sites(subject.libraries[OPERATOR])
        # Two barriers follow each other's stores; the last but one stands inside the reduction.
        barrier = Score(Mutant("race", OPERATOR, places["dropped barrier"][2]), "equivalent")
        swap = Score(Mutant("swap", OPERATOR, places["sign"][0]), "equivalent")
        checking = Checking(subject, checker)
        scores = {score.mutant.name: score for score in checking.check([barrier, swap], 60.0)}
        late = next(checking.check([barrier], -1.0))
    assert scores["race"].outcome == "detected"
    assert scores["race"].found_by == "Oclgrind"
    assert "data race" in scores["race"].reason
    assert scores["swap"] == swap
    assert late == replace(barrier, unchecked="no time was left for it")
