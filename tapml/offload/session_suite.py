"""A session's suite: as it was carved where that one is whole and of this model, else a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tapml.carving.record import CarveProgress, carve
from tapml.carving.suite import Suite
from tapml.durable.files import remove_folder
from tapml.offload.events import Note
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.execute.executor import Executor
    from tapml.offload.phases import Phase, Phases
    from tapml.offload.settings import Settings
    from tapml.offload.trusted_side import TrustedSide

SUITE: Final = "suite"
_SHOWN: Final = 3


def open_suite(
    folder: Path, settings: Settings, side: TrustedSide, executor: Executor, phases: Phases
) -> Suite:
    """Open the suite in a session's folder, or carve it.

    Raises
    ------
    SetupError
        If it cannot be written.
    """
    path = folder / SUITE
    known = _known_suite(path, side)
    if known is not None:
        return known
    # Of another model, or damaged: the session made it and makes it again.
    remove_folder(path)
    prompts = side.prompts
    with phases.phase("carve tests", group="overhead", platform="llvm", once=True) as phase:
        suite = carve(
            side.model,
            executor,
            prompts,
            path,
            max_new_tokens=settings.new_tokens,
            budget_bytes=settings.budget_bytes,
            progress=carving_progress(phase, len(prompts), settings.new_tokens),
            # Verdicts of days are keyed by it: after a power failure it must be what was carved.
            durable=True,
        )
        phase.detail = f"{suite.facts['tests']} tests from {len(prompts)} prompts"
    left_out = tuple(suite.facts["operators_left_out"])
    if left_out:
        names = ", ".join(left_out[:_SHOWN]) + ", ..." * (len(left_out) > _SHOWN)
        phases.watcher(
            Note(
                f"the budget leaves {len(left_out)} operators without a test, and what is not "
                f"tested does not move: {names}; begin anew with a larger --budget (--restart)"
            )
        )
    return suite


def carving_progress(phase: Phase, prompts: int, steps: int) -> Callable[[CarveProgress], None]:
    """Tell a phase how far a carve of so many prompts and steps is."""

    def tell(at: CarveProgress) -> None:
        phase.progress(at.prompt * steps + at.step + 1, prompts * steps, f"{at.tests} tests")

    return tell


def _known_suite(path: Path, side: TrustedSide) -> Suite | None:
    if not path.exists():
        return None
    try:
        suite = Suite.open(path)
    except InputError:
        return None
    made_from = (suite.facts["plan_hash"], suite.facts["weights_hash"])
    if suite.complete and made_from == (side.plan_hash, side.model.weights_hash):
        return suite
    suite.close()
    return None
