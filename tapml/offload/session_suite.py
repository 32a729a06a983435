"""A session's suite: the existing one if it is complete and of this model, else a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tapml.carving.record import CarveProgress, carve
from tapml.durable.files import remove_folder
from tapml.execute.device_reference import platform_of, reference_identity
from tapml.runs.events import Note
from tapml.suite.suite import Suite
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.execute.executor import Executor
    from tapml.offload.reference_side import ReferenceSide
    from tapml.runs.phases import Phase, Phases
    from tapml.session.settings import Settings

SUITE: Final = "suite"
_SHOWN: Final = 3


def open_suite(
    folder: Path, settings: Settings, side: ReferenceSide, executor: Executor, phases: Phases
) -> Suite:
    """Open the suite in a session's folder, or carve it. Raises SetupError if writing fails."""
    path = folder / SUITE
    known = _known_suite(path, side)
    if known is not None:
        return known
    # It is incomplete, damaged, or of another model or reference.
    remove_folder(path)
    cases = side.cases
    platform = platform_of(side.reference)
    with phases.phase("carve tests", group="overhead", platform=platform, once=True) as phase:
        suite = carve(
            side.model,
            executor,
            cases,
            path,
            max_new_tokens=settings.new_tokens,
            budget_bytes=settings.budget_bytes,
            progress=carving_progress(phase, len(cases), settings.new_tokens),
            # Keys of verdicts depend on it, so it must survive a power failure.
            durable=True,
        )
        phase.detail = f"{suite.facts['tests']} tests from {len(cases)} cases"
    left_out = tuple(suite.facts["operators_left_out"])
    if left_out:
        names = ", ".join(left_out[:_SHOWN]) + ", ..." * (len(left_out) > _SHOWN)
        phases.watcher(
            Note(
                f"the budget leaves {len(left_out)} operators without a test, so they are not "
                f"migrated: {names}; start again with a larger --budget (--restart)"
            )
        )
    return suite


def carving_progress(phase: Phase, prompts: int, steps: int) -> Callable[[CarveProgress], None]:
    """A callback that reports the progress of carving to a phase."""

    def tell(at: CarveProgress) -> None:
        phase.progress(at.prompt * steps + at.step + 1, prompts * steps, f"{at.tests} tests")

    return tell


def _known_suite(path: Path, side: ReferenceSide) -> Suite | None:
    if not path.exists():
        return None
    try:
        suite = Suite.open(path)
    except InputError:
        return None
    made_from = (suite.plan_hash, suite.weights_hash, suite.reference_identity)
    reference = reference_identity(side.reference)
    if suite.complete and made_from == (side.plan_hash, side.model.weights_hash, reference):
        return suite
    suite.close()
    return None
