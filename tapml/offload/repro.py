"""A repro folder for an operator that failed: everything needed to see it fail again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from tapml.carving.lost import LOST, NO_TEST, UNBUILT
from tapml.carving.replay_repro import README, SCRIPT, Failure, write_kernels, write_repro
from tapml.carving.replay_results import ReplayResult, Timing
from tapml.carving.repro_attempt import ATTEMPT, ATTEMPT_LIBRARY, ATTEMPT_VERSION
from tapml.carving.repro_failure import KERNELS
from tapml.carving.repro_pages import SCRIPT_TEXT
from tapml.compare.oracle import CarvedCase
from tapml.compare.verdict import Verdict
from tapml.compiler.preflight import require
from tapml.compiler.reach import Reach, reach_of
from tapml.durable.files import replace_folder, write_bytes, write_json, write_text
from tapml.graph.plan import Operator
from tapml.localize.diagnosis import Diagnosis
from tapml.offload.events import Note
from tapml.offload.workbench import Workbench
from tapml_rpc.reach import open_another
from tapml_targets.description_format import to_plain
from tapml_targets.errors import CompileError, LimitExceededError
from tapml_targets.library import Library
from tapml_targets.library_format import pack

REPRO: Final = "repro"

_RETRY: Final = """\
Operator {operator} could not move to {target}.

{reason}

{how}

failure.json   the same as data, with where in the model the operator comes from
operator.txt   the operator, as TVMScript
kernels/       {kernels}
"""
_ALONE: Final = """\
See it again, here or on any machine with the same kind of device:

    python {name}/repro.py

It takes the base install of tapml and a driver for {platform}. Edit a source in kernels/ and run it
again to try a fix."""
_WRITTEN: Final = """\
The kernel was written by hand. Edit it in {written}; every save is tried at once:

    tapml kernel check {session} {operator} --watch"""
_COMPILED: Final = "what the compiler made of it, where it got so far"
_BY_HAND: Final = "the kernel as it was written by hand, where it could be read"
_SESSION: Final = """\
No folder holds enough to see this again: {why}. It takes the session, the model and the toolkit:

    tapml offload --session {session}"""


def write_test_failure(
    bench: Workbench, operator: Operator, library: Library, result: ReplayResult
) -> tuple[Path, Diagnosis | None]:
    """Write ``repro/<operator>`` for a carved test that did not pass; ``tapml replay`` takes it.

    The folder stands before the failure is looked into, which may take half a minute, and is
    written again with what was found.

    Returns
    -------
    tuple
        The folder and the diagnosis.
    """
    from tapml.localize.apart import diagnosed

    folder = bench.folder / REPRO / operator.name
    failure = Failure(
        operator=operator,
        result=result,
        library=library,
        device=bench.session.device,
        expectation=bench.probing.appeal(result.case),
        policy=bench.policy,
        origins=bench.imported.plan.origins_of(operator.name),
    )
    write_repro(folder, failure)
    if result.verdict.reason.startswith(LOST):
        # Looking into it would ask the device that is gone.
        return folder, None
    bench.watcher(Note(f"{operator.name} failed: looking for the inner step and the cause"))
    failure = diagnosed(
        failure,
        bench.compiler,
        oracle=bench.oracle,
        open_session=partial(open_another, bench.session),
    )
    return write_repro(folder, failure), failure.diagnosis


class LastTest:
    """Hands tests on, and knows which came last: it was running when a device was lost."""

    def __init__(self, tests: Iterable[CarvedCase]) -> None:
        self._tests = tests
        self.case: CarvedCase | None = None

    def __iter__(self) -> Iterator[CarvedCase]:
        for case in self._tests:
            self.case = case
            yield case


def lost_result(bench: Workbench, case: CarvedCase, reason: str) -> ReplayResult | None:
    """A test over which the device was lost, as a result; None where no float64 twin judges it."""
    try:
        bench.probing.appeal(case)
    except CompileError:
        return None
    verdict = Verdict("fail", 0.0, (), reason, "target")
    return ReplayResult(case.id, case.operator, verdict, Timing(0, 0, None, 0, 0), case)


def write_other_failure(
    bench: Workbench,
    operator: Operator,
    library: Library | None,
    reason: str,
    *,
    written: str = "",
) -> Path:
    """Write ``repro/<operator>`` where no test of the operator failed: compiler, limits, model.

    It has a ``repro.py`` where the kernels alone show the failure. `written` is the folder of the
    hand-written kernel that takes the compiled one's place; empty where none does.
    """
    folder = bench.folder / REPRO / operator.name
    with replace_folder(folder) as partial:
        _write_other(partial, bench, operator, library, reason, written)
    return folder


def _write_other(
    folder: Path,
    bench: Workbench,
    operator: Operator,
    library: Library | None,
    reason: str,
    written: str,
) -> None:
    symbols = reach_of(bench.imported.plan).operators.get(operator.name, ())
    alone = library is not None and _shown_by_kernels(bench, operator, library, reason)
    kernels: list[str | None] | None = None
    if library is not None:
        kernels = write_kernels(folder / KERNELS, library)
        write_bytes(folder / ATTEMPT_LIBRARY, pack(library))
    write_json(
        folder / ATTEMPT,
        {
            "format": ATTEMPT_VERSION,
            "operator": operator.name,
            "hash": operator.hash,
            "target": bench.settings.target,
            "device": to_plain(bench.session.device),
            "reason": reason,
            "symbols": [dict(each) for each in symbols],
            "kernels": kernels if alone else None,
            "origins": [asdict(each) for each in bench.imported.plan.origins_of(operator.name)],
        },
    )
    write_text(folder / "operator.txt", operator.script)
    how = _ALONE.format(name=operator.name, platform=bench.settings.target)
    if alone:
        write_text(folder / SCRIPT, SCRIPT_TEXT)
    else:
        why = "the kernels run, and the whole model differs with them"
        if library is None:
            why = "there is no kernel yet"
            if written:
                why = "the hand-written kernel cannot be read as it is"
        elif reason == NO_TEST:
            why = "no test of it was carved"
        how = _SESSION.format(why=why, session=bench.folder)
    if written:
        how += "\n\n" + _WRITTEN.format(
            written=written, session=bench.folder, operator=operator.name
        )
    page = _RETRY.format(
        operator=operator.name,
        target=bench.settings.target,
        reason=reason,
        how=how,
        kernels=_BY_HAND if written else _COMPILED,
    )
    write_text(folder / README, page)


def _shown_by_kernels(bench: Workbench, operator: Operator, library: Library, reason: str) -> bool:
    """Whether a device that is given the kernels alone fails again."""
    if reason.startswith((UNBUILT, LOST)):
        return True
    symbols = reach_of(bench.imported.plan).operators.get(operator.name, ())
    try:
        require(library, bench.target.limits, reach=Reach({operator.name: symbols}))
    except LimitExceededError:
        return True
    return False
